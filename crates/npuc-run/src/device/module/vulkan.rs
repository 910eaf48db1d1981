//! The Vulkan driver of [`Tool::Vulkan`](crate::toolchain::Tool::Vulkan) for a process, and for it alone.
//!
//! The width of the driver's vectors is the size of its subgroups, for which code is compiled: another width gives wrong numbers
//! without a word. The driver keeps compiled code without regard to the width, so every width has a folder of its own.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use npuc::{Code, Diagnostic, Result};
use tempfile::TempDir;

use crate::toolchain::Installed;

/// The width for IREE's target `llvmpipe`, whose subgroups are of 8.
pub(super) const LLVMPIPE_BITS: u32 = 256;
/// The width for Valhall, whose subgroups are of 16.
pub(super) const VALHALL_BITS: u32 = 512;

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const DRIVER: &str = "libvulkan_lvp.so";

/// Makes the command use the driver with vectors of `bits`; the folder has to live as long as the process.
///
/// Errors: [`Code::MissingTool`] if the driver is not among the tool's folders, [`Code::Unwritable`].
pub(super) fn set(command: &mut Command, tool: &Installed, bits: u32) -> Result<TempDir> {
    let libraries: Vec<PathBuf> = tool.folders.iter().map(|folder| folder.join(LIBRARIES)).collect();
    let driver = libraries.iter().map(|folder| folder.join(DRIVER)).find(|driver| driver.is_file());
    let driver = driver.ok_or_else(|| {
        Diagnostic::error(Code::MissingTool, format!("the tool has no {DRIVER}"))
            .subject(tool.tool.name())
            .help(format!("run `npuc toolchain install {}`", tool.tool.name()))
    })?;
    let fault =
        |e: std::io::Error| Diagnostic::error(Code::Unwritable, format!("cannot describe the Vulkan driver: {e}"));
    let folder = tempfile::tempdir().map_err(fault)?;
    // The package's own description says where it would be installed.
    let icd = serde_json::json!({
        "file_format_version": "1.0.0",
        "ICD": { "library_path": driver.display().to_string(), "api_version": "1.3.0" },
    });
    let description = folder.path().join("lvp.json");
    std::fs::write(&description, icd.to_string()).map_err(fault)?;
    let shaders = npuc_fetch::cache().map(|cache| cache.join(format!("shaders-{bits}")));
    let shaders = shaders.map_err(|e| Diagnostic::error(Code::Unwritable, e.to_string()))?;
    std::fs::create_dir_all(&shaders).map_err(fault)?;
    let inherited = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let inherited: Vec<PathBuf> = std::env::split_paths(&inherited).filter(|path| path.is_absolute()).collect();
    let path: OsString = std::env::join_paths(libraries.iter().chain(&inherited))
        .map_err(|e| Diagnostic::error(Code::ToolFailed, format!("the tool's folders cannot be named: {e}")))?;
    command.env("LD_LIBRARY_PATH", path).env("VK_DRIVER_FILES", &description).env("VK_ICD_FILENAMES", &description);
    command.env("LP_NATIVE_VECTOR_WIDTH", bits.to_string()).env("MESA_SHADER_CACHE_DIR", shaders);
    Ok(folder)
}
