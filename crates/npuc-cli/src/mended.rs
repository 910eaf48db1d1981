//! What was mended, how it was proved, and what a placement costs, as text.

use std::fmt::Write;

use npuc::mend::{Applied, Proof};
use npuc::model::StepShape;
use npuc::place::Bill;

use crate::output::{bytes, count};

/// A line for each mend and one for its proof; nothing where nothing was mended.
pub(crate) fn render(applied: &[Applied], proofs: &[Proof]) -> String {
    let mut text = String::new();
    for Applied { mend, rules } in applied {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<14}{mend} (for {})", "mended", rules.join(", "));
        if let Some(proof) = proofs.iter().find(|proof| proof.mend == *mend) {
            let _ = writeln!(text, "{:<14}{}", "  on the host", difference(proof));
        }
    }
    text
}

/// A line for the placement of each shape; nothing where all is on the NPU.
pub(crate) fn bills(bills: &[(StepShape, Bill)]) -> String {
    let mut text = String::new();
    for (shape, bill) in bills {
        let Bill { segments, npu_segments, hops, bytes_per_step, bytes_per_token } = bill;
        let per_token = bytes_per_token.map_or(String::new(), |count| format!(", {} a token", bytes(count)));
        let moved = bytes(*bytes_per_step);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<14}{shape}: {}, {npu_segments} on the NPU, {}, {moved} over the bus a step{per_token}",
            "placement",
            count(*segments, "segment"),
            count(*hops, "hop"),
        );
    }
    text
}

fn difference(proof: &Proof) -> String {
    let layers = count(proof.layers, "layer");
    let at = format!("{} over {layers} and the head", proof.shapes.join(", "));
    match proof.identical {
        true => format!("the same numbers to the last bit, at {at}"),
        false => {
            format!("largest difference {:.1e}, the largest number being {:.1e}, at {at}", proof.max_abs, proof.largest)
        }
    }
}
