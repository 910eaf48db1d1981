//! What the QNN back end makes of a small model, as golden texts in `tests/data/qnn`: no library is needed. `UPDATE=1` writes them anew.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::Path;

use npuc::back::EmittedFile;
use npuc::back::qnn::{Activations, Description, export};
use npuc::exec::to_f32;
use npuc::fit::Request;
use npuc::front::{self, Checkpoint};
use npuc::model::{Part, layers};
use npuc::pass::Pass;
use npuc::quant::{Activation, Cache, Method, Scheme};
use npuc::target::{Mend, Number, Precision, Question, find};
use npuc::{Code, DType, Tensor};
use npuc_kernels::quantize::{Search, quantize_row};
use npuc_run::calibrate::calibrate;

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// A model of one layer with its matrices in that format.
fn model(dtype: DType) -> Checkpoint {
    let mut checkpoint = front::open(&data("checkpoints/llama-reverse-tied-f32")).unwrap();
    for tensor in checkpoint.tensors.values_mut().filter(|tensor| tensor.shape.len() == 2) {
        let cols = tensor.shape[1];
        let mut bytes = vec![0; tensor.shape[0] * dtype.row_bytes(cols).unwrap()];
        let rows = bytes.chunks_exact_mut(dtype.row_bytes(cols).unwrap());
        to_f32(tensor).chunks(cols).zip(rows).for_each(|(row, to)| quantize_row(dtype, row, None, Search::Plain, to));
        *tensor = Tensor::in_memory(dtype, tensor.shape.clone(), bytes.into()).unwrap();
    }
    checkpoint
}

fn request(activation: Number, split: bool) -> Request {
    let target = find("sm8650").unwrap();
    let precision = Precision { activation, ..Precision::stored(target.float) };
    let question = Question::new(&target, precision, &[]).unwrap();
    let mends = if split { vec![Mend::Pass(Pass::SplitAttention)] } else { Vec::new() };
    Request { mends, ..Request::new(target, question, vec!["4t8c".parse().unwrap(), "1t8c".parse().unwrap()]) }
}

const U16: Scheme =
    Scheme { activation: Activation::U16, cache: Cache::U8, method: Method::MinMax, float_residual: true };

/// The descriptions of the model's graphs, the larger step first.
fn described(dtype: DType, scheme: Option<Scheme>, split: bool) -> npuc::Result<Vec<Description>> {
    let checkpoint = model(dtype);
    let activation = if scheme.is_some() { Number::Int16 } else { Number::F16 };
    let request = request(activation, split);
    let parts = [Part::whole(layers(&checkpoint.config))];
    let sequences = [(0..8).map(|id| id * 31 % 288).collect::<Vec<u32>>()];
    let ranges = calibrate(&checkpoint, &request, &parts, &sequences, 1)?;
    let activations = scheme.map_or(Activations::Half, |scheme| Activations::Whole(scheme, &ranges));
    let exported = export(&checkpoint, &request, &parts, activations)?;
    let description = |file| match file {
        Some((_, EmittedFile::Qnn(description))) => description,
        Some((_, EmittedFile::Tflite(_) | EmittedFile::Module(_))) | None => panic!("a graph has no description"),
    };
    Ok(exported.graphs.into_iter().map(|graph| description(graph.file)).collect())
}

fn lpbq() -> DType {
    DType::from_name("lpbq4-g32").unwrap()
}

#[test]
fn descriptions_are_what_they_were() {
    for (name, dtype, scheme, split) in [
        ("half", DType::F16, None, false),
        ("blocks", lpbq(), Some(U16), false),
        ("split", DType::Int8, Some(Scheme { cache: Cache::U16, float_residual: false, ..U16 }), true),
    ] {
        let descriptions = described(dtype, scheme, split).unwrap();
        assert_eq!(descriptions.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["model.0.s4", "model.0.s1"]);
        for description in &descriptions {
            // One layer: three inputs and two caches, the scores and two new rows.
            assert_eq!((description.inputs().count(), description.outputs().count()), (5, 3), "{name}");
            assert_eq!(Description::parse(&description.to_text()).unwrap(), *description);
        }
        let text = descriptions[1].to_text();
        let path = data(&format!("qnn/{name}.json"));
        if std::env::var_os("UPDATE").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &text).unwrap();
        }
        let golden =
            fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}; UPDATE=1 writes it", path.display()));
        assert!(
            golden == text,
            "{name} is another description than {}; see it with UPDATE=1 and git diff",
            path.display()
        );
    }
}

/// What has no form, and why.
#[test]
fn what_is_not_emitted() {
    let float = |activation| Some(Scheme { activation, float_residual: false, ..U16 });
    for (dtype, scheme, code) in [
        (DType::F32, None, Code::UnsupportedFormat),
        (DType::Q8_0, None, Code::UnsupportedFormat),
        (DType::F16, Some(U16), Code::UnsupportedFormat),
        (DType::Int8, float(Activation::S16), Code::Misfit),
        (DType::Int8, float(Activation::F32), Code::Misfit),
    ] {
        let error = described(dtype, scheme, false).expect_err(dtype.name());
        assert_eq!(error.diagnostics()[0].code, code, "{dtype}: {error}");
    }
    let error = Description::parse("{\"name\":\"g\",\"tensors\":[],\"nodes\":[],\"more\":1}").unwrap_err();
    assert_eq!(error.diagnostics()[0].code, Code::BadBundle);
}
