//! Kept values of a graph as a safetensors file, for comparison with other tools.

use std::path::Path;

use npuc::{Code, Diagnostic, Result, Shape};
use safetensors::tensor::{Dtype, TensorView};

/// A value by name, with its extents and elements.
pub type Value<'a> = (&'a str, &'a Shape, &'a [f32]);

/// Writes the values as f32 tensors, to a temporary name first.
///
/// Errors: a file that cannot be written.
pub fn write(path: &Path, values: &[Value<'_>]) -> Result<()> {
    let fault =
        |what: String| Diagnostic::error(Code::Unwritable, format!("cannot write the values: {what}")).file(path);
    let view = |&(name, shape, elements): &Value<'_>| {
        let bytes = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
        (name.to_string(), shape.to_vec(), bytes)
    };
    let owned: Vec<(String, Vec<usize>, Vec<u8>)> = values.iter().map(view).collect();
    let views = owned.iter().map(|(name, shape, bytes)| {
        TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name.as_str(), view))
    });
    let views: Vec<_> = views.collect::<std::result::Result<_, _>>().map_err(|e| fault(e.to_string()))?;
    let bytes = safetensors::serialize(views, None).map_err(|e| fault(e.to_string()))?;
    npuc::bundle::staging::write_file(path, &bytes)
}
