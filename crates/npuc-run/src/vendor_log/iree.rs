//! What IREE's compiler and runtime say.

use super::{Kind, Statement};

/// What a line of IREE says.
pub(super) fn read(line: &str) -> Option<Statement> {
    let says = |text: &str| line.contains(text);
    if says("failed to legalize operation 'vector.bitcast'") || says("'spirv.Bitcast' op mismatch") {
        return Some(Statement::new(Kind::IreeBitcast, "a product in bf16 does not compile for this GPU"));
    }
    if says("failed to legalize operation 'arith.constant'") {
        let statement = Statement::new(Kind::IreeConstant, "a cache is too long for the way it is written");
        let vector = line.rsplit_once("vector<").and_then(|(_, rest)| rest.split_once('>'));
        return Some(match vector {
            Some((extent, _)) => statement.actual(format!("a vector of {extent}")),
            None => statement,
        });
    }
    runtime(line)
}

fn runtime(line: &str) -> Option<Statement> {
    if let Some((_, rest)) = line.split_once("no provider registered that handles scopes like '") {
        let scope = rest.split('\'').next().unwrap_or_default();
        let statement = Statement::new(Kind::IreeScope, "the module's parameters are not given");
        return Some(statement.actual(format!("no file for the scope {scope}")));
    }
    if line.contains("required module 'io_parameters' not registered") {
        return Some(Statement::new(Kind::IreeScope, "the module's parameters are not given"));
    }
    if let Some((_, rest)) = line.split_once("no parameter found in index with key '") {
        let key = rest.split('\'').next().unwrap_or_default();
        return Some(Statement::new(Kind::IreeParameter, "a parameter is not in the file").actual(key));
    }
    if line.contains("INVALID_ARGUMENT; input") && line.contains("mismatch") {
        let statement = Statement::new(Kind::IreeArguments, "the arguments are not those of the function");
        let what = line.split_once("INVALID_ARGUMENT; ").map(|(_, rest)| rest.split("; while").next().unwrap_or(rest));
        return Some(match what {
            // A semicolon parts the values of several lines.
            Some(what) => statement.actual(what.split("; ").take(2).collect::<Vec<_>>().join(", ")),
            None => statement,
        });
    }
    let vulkan = line.contains("Vulkan loader library not found")
        || line.contains("VK_ERROR_INCOMPATIBLE_DRIVER")
        || (line.contains("VK_ERROR_INITIALIZATION_FAILED") && line.contains("drivers/vulkan"));
    vulkan.then(|| Statement::new(Kind::IreeVulkan, "there is no Vulkan device"))
}
