//! What Synaptics' Torq compiler says of memory and of forms that it does not take.

use super::{Kind, Statement};

/// What a line of the Torq compiler says.
pub(super) fn read(line: &str) -> Option<Statement> {
    let says = |text: &str| line.contains(text);
    if let Some((_, rest)) = line.split_once("LRAM plan infeasible") {
        let statement = Statement::new(Kind::TorqFragments, "a buffer finds no room in one piece in the LRAM");
        let numbers: Vec<u64> =
            rest.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect();
        return Some(match numbers[..] {
            [_, _, buffer, resident, all] => statement
                .limit(format!("{all} bytes of LRAM"))
                .actual(format!("{resident} bytes in use and a buffer of {buffer} bytes")),
            _ => statement,
        });
    }
    if says("failed to allocate LRAM addresses") {
        return Some(Statement::new(Kind::TorqLram, "the buffers of the step do not fit the LRAM"));
    }
    if says("Compressed iType not supported here") {
        return Some(Statement::new(Kind::TorqForm, "4-bit weights stand in a form that is not fused"));
    }
    if says("data-dependent memory offset") {
        return Some(Statement::new(Kind::TorqOffset, "a slice begins at a place that is known only at run time"));
    }
    says("unable to create memcpy").then(|| Statement::new(Kind::TorqCopy, "rows of 4-bit weights are not whole bytes"))
}
