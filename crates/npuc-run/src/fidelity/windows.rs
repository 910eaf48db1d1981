//! Windows over a text's token ids, by the rules of llama-perplexity, so that figures can be compared.
//!
//! The text is cut into whole windows of `context` ids; what is left at its end is not scored.

use std::ops::Range;

use npuc::{Code, Diagnostic, Result};

/// The ids of a window where nobody says otherwise, as llama-perplexity has it.
pub const DEFAULT_CONTEXT: usize = 512;
/// The fewest ids of a window: half of it is read, and what the other half predicts must be in it too.
const LEAST_CONTEXT: usize = 4;

/// Whether a window can have this many ids.
///
/// Errors: an odd number or one below 4.
pub fn check_context(context: usize) -> Result<()> {
    if context >= LEAST_CONTEXT && context.is_multiple_of(2) {
        return Ok(());
    }
    Err(Diagnostic::error(Code::BadArgument, "a window cannot have this many ids")
        .subject("--context")
        .need(format!("an even number of at least {LEAST_CONTEXT}"))
        .have(context)
        .into())
}

/// The windows of a text. Each is computed with an empty cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    ids: Vec<u32>,
    context: usize,
    bos: Option<u32>,
    count: usize,
}

impl Windows {
    /// Cuts `ids` into windows of `context`. `bos`, for a model that begins its texts with an id, takes the place of the
    /// first id of every window. `most` limits the windows.
    ///
    /// Errors: an odd context or one below 4, no windows, fewer ids than one window.
    pub fn new(ids: Vec<u32>, context: usize, bos: Option<u32>, most: Option<usize>) -> Result<Windows> {
        check_context(context)?;
        if most == Some(0) {
            let fault = Diagnostic::error(Code::BadArgument, "there is no window to measure").subject("--windows");
            return Err(fault.need("at least 1").have(0).into());
        }
        let whole = ids.len() / context;
        if whole == 0 {
            return Err(Diagnostic::error(Code::BadArgument, "the text is shorter than one window")
                .need(format!("{context} token ids"))
                .have(format!("{} token ids", ids.len()))
                .help("give a longer text, or lower --context N (even, at least 4)")
                .into());
        }
        Ok(Windows { count: most.map_or(whole, |most| most.min(whole)), ids, context, bos })
    }

    /// The ids of every window, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Vec<u32>> {
        self.ids.chunks_exact(self.context).take(self.count).map(|ids| {
            let mut ids = ids.to_vec();
            ids[0] = self.bos.unwrap_or(ids[0]);
            ids
        })
    }

    /// The positions of a window whose scores count: each predicts the id after it, and has half a window before it.
    pub fn scored(&self) -> Range<usize> {
        self.context / 2..self.context - 1
    }

    /// Ids of a window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Ids of the text that no window has.
    pub fn left_out(&self) -> usize {
        self.ids.len() - self.count * self.context
    }
}
