//! One port for both rotary tables, as runtimes of NPUs have it; its numbers and layout are those of MediaTek's.

use super::super::ir::{GraphBuilder, Op, Type, ValueId};
use crate::diag::{Code, Diagnostic, Result};
use crate::model::Port;

/// The port's name.
pub const ROTARY: &str = "rotary";

/// Adds the port `rotary` `[1, 2, tokens, head_dim]` for tables of one type `[tokens, head_dim / 2]`: cosines, then sines, each
/// for both halves of a row.
///
/// Errors: [`Code::Misfit`] for tables of different types, or only one of them.
pub(super) fn declare(g: &mut GraphBuilder, tables: [Option<&Type>; 2]) -> Result<Option<ValueId>> {
    match tables {
        [None, None] => Ok(None),
        [Some(cos), Some(sin)] if cos == sin && cos.shape.len() == 2 => {
            Ok(Some(g.input(ROTARY, [1, 2, cos.shape[0], 2 * cos.shape[1]])))
        }
        [Some(_), _] | [None, Some(_)] => {
            Err(Diagnostic::error(Code::Misfit, "the step graph lacks a port that runtimes fill")
                .need("`rope_cos` and `rope_sin` of one shape")
                .into())
        }
    }
}

/// Cosines and sines `[tokens, head_dim / 2]` out of the port.
pub(super) fn tables(g: &mut GraphBuilder, rotary: ValueId, table: &Type) -> [ValueId; 2] {
    [(0, Port::RopeCos), (1, Port::RopeSin)].map(|(start, port)| {
        let name = port.to_string();
        let both = g.op(name.clone(), Op::Slice { axis: 1, start, len: 1 }, &[rotary]);
        let half = g.op(name.clone(), Op::Slice { axis: 3, start: 0, len: table.shape[1] }, &[both]);
        g.op(name, Op::Reshape { shape: table.shape.to_vec() }, &[half])
    })
}
