//! The contexts of a bundle for Qualcomm's chips: what a worker is asked for, and what is known of each binary afterwards.
//!
//! The graphs of all step shapes of one part of the model are one context, over weights that lie in the bundle.

use std::path::{Path, PathBuf};

use npuc::bundle::{ContextRecord, GraphMemory, GraphRecord, Manifest};
use npuc::target::Target;
use npuc::{Code, Diagnostic, Result};

use crate::device::qnn::{Context, Options, Prepare, Qnn, Stored};

/// The folder of the context binaries in a bundle.
const FOLDER: &str = "contexts";

/// Qualcomm's number of the chip that a bundle was built for.
///
/// Errors: [`Code::BadArgument`] for a bundle for another target.
pub fn soc_model(target: &Target) -> Result<u32> {
    target.soc_model.ok_or_else(|| {
        Diagnostic::error(Code::BadArgument, "the target is none of Qualcomm's chips")
            .subject(&target.name)
            .help("build for sm8550, sm8650, sm8750 or sm8850")
            .into()
    })
}

/// What a worker is asked for so that it holds the contexts of the bundle in `folder`, part by part; nothing is written.
/// With `shared` the graphs of a context keep equal weights once.
///
/// Errors: [`Code::BadBundle`] for graphs without a description, or shapes that are cut differently.
pub fn requests(folder: &Path, manifest: &Manifest, soc: u32, shared: bool) -> Result<Vec<Prepare>> {
    let weights: Vec<Stored> = manifest
        .weights
        .iter()
        .map(|weight| Stored {
            name: weight.name.clone(),
            dtype: weight.dtype.clone(),
            shape: weight.shape.clone(),
            file: folder.join(&weight.file),
            offset: weight.offset,
        })
        .collect();
    let request = |part: Vec<&GraphRecord>| {
        let description = |graph: &&GraphRecord| {
            let fault = Diagnostic::error(Code::BadBundle, "a graph of the bundle has no description for QNN");
            graph.emitted.as_ref().map(|name| folder.join(name)).ok_or_else(|| fault.subject(&graph.ir).into())
        };
        let descriptions = part.iter().map(description).collect::<Result<Vec<PathBuf>>>()?;
        let (options, weights) = (Options::default(), weights.clone());
        Ok(Prepare { soc, shared, options, descriptions, weights, binary: None, keep: true, profile: None })
    };
    parts(manifest)?.into_iter().map(request).collect()
}

/// The graphs of each part, in the order of the manifest.
fn parts(manifest: &Manifest) -> Result<Vec<Vec<&GraphRecord>>> {
    let mut by_shape: Vec<Vec<&GraphRecord>> = Vec::new();
    for graph in &manifest.graphs {
        match by_shape.last_mut().filter(|graphs| graphs[0].shape == graph.shape) {
            Some(graphs) => graphs.push(graph),
            None => by_shape.push(vec![graph]),
        }
    }
    let count = by_shape.first().map_or(0, Vec::len);
    if by_shape.iter().any(|graphs| graphs.len() != count) {
        return Err(Diagnostic::error(Code::BadBundle, "the step shapes are cut into different parts").into());
    }
    Ok((0..count).map(|part| by_shape.iter().map(|graphs| graphs[part]).collect()).collect())
}

/// What was made of a part.
#[derive(Clone, Debug)]
pub struct Made {
    /// What the manifest says of it.
    pub record: ContextRecord,
    /// The context as the worker describes it.
    pub context: Context,
}

/// How contexts are made.
pub struct Making<'a> {
    /// Qualcomm's number of the chip.
    pub soc: u32,
    /// The size that is expected of each context.
    pub forecast_bytes: &'a [u64],
    /// Whether every context is made a second time without shared weights, which the emulation can load again.
    pub twins: bool,
    /// Starts a worker: each context has one of its own, so that the memory of one is free before the next.
    pub start: &'a mut dyn FnMut() -> Result<Qnn>,
    /// Is told what is being done.
    pub say: &'a mut dyn FnMut(&str),
}

/// Makes the context binaries of a bundle that is being written, twins behind all others.
///
/// Errors: what the libraries refuse; what [`requests`] refuses.
pub fn make(folder: &Path, manifest: &Manifest, making: Making<'_>) -> Result<Vec<Made>> {
    let made = folder.join(FOLDER);
    std::fs::create_dir_all(&made).map_err(|e| {
        Diagnostic::error(Code::Unwritable, format!("cannot make the folder of the contexts: {e}")).file(&made)
    })?;
    let Making { soc, forecast_bytes, twins, start, say } = making;
    let mut contexts = Vec::new();
    for shared in [true, false].into_iter().filter(|shared| *shared || twins) {
        for (part, request) in requests(folder, manifest, soc, shared)?.into_iter().enumerate() {
            let file = format!("{FOLDER}/model.{part}{}.bin", if shared { "" } else { TWIN });
            let forecast_bytes = if shared { forecast_bytes.get(part).copied() } else { None };
            let mut qnn = start()?;
            let request = Prepare { binary: Some(folder.join(&file)), keep: false, ..request };
            let context = qnn.prepare(&request, say)?;
            let record = record(
                &mut qnn,
                folder,
                file,
                &context,
                ContextRecord { shared, soc_model: soc, forecast_bytes, ..Default::default() },
            )?;
            contexts.push(Made { record, context });
        }
    }
    Ok(contexts)
}

/// What the name of a context without shared weights has before its ending.
const TWIN: &str = ".twin";

/// What the manifest says of a context binary, as the libraries read it back.
fn record(
    qnn: &mut Qnn,
    folder: &Path,
    file: String,
    context: &Context,
    known: ContextRecord,
) -> Result<ContextRecord> {
    let info = qnn.info(&folder.join(&file))?;
    let graphs: Vec<String> = context.graphs.iter().map(|graph| graph.name.clone()).collect();
    let memory = |name: &String| {
        let graph = info.graphs.iter().find(|graph| graph.name == *name);
        let fault = || Diagnostic::error(Code::ToolFailed, "a graph is not in the context binary that was made");
        let sizes = graph.ok_or_else(|| fault().file(folder.join(&file)).subject(name))?.sizes;
        Ok(sizes.map(|sizes| GraphMemory {
            spill_fill_bytes: sizes.spill_fill_bytes,
            vtcm_bytes: sizes.vtcm_bytes.into(),
            op_bytes: sizes.op_bytes,
            const_bytes: sizes.const_bytes,
            shared_weight_bytes: sizes.shared_weight_bytes,
            io_bytes: sizes.io_bytes,
        }))
    };
    let memory = graphs.iter().map(memory).collect::<Result<Option<Vec<GraphMemory>>>>()?;
    Ok(ContextRecord {
        bytes: info.bytes,
        build_id: info.build.clone(),
        core_api: version(info.core),
        backend_api: version(info.back_end),
        memory: memory.unwrap_or_default(),
        graphs,
        file,
        ..known
    })
}

/// Whether this machine is a chip's own, whose libraries load contexts with shared weights: x86 has the emulation alone.
const IS_DEVICE: bool = cfg!(target_arch = "aarch64");

/// The contexts of a bundle in a worker for execution. A device loads them; the emulation loads their twins where the bundle has
/// these, and prepares the graphs anew otherwise.
///
/// Errors: what the libraries refuse; what [`requests`] refuses.
pub fn emulated(folder: &Path, manifest: &Manifest, soc: u32, qnn: &mut Qnn) -> Result<Vec<Context>> {
    let loadable = |context: &&ContextRecord| context.shared == IS_DEVICE;
    let loaded: Vec<&ContextRecord> = manifest.contexts.iter().filter(loadable).collect();
    if loaded.is_empty() {
        let requests = requests(folder, manifest, soc, true)?;
        return requests.iter().map(|request| qnn.prepare(request, &mut |_| ())).collect();
    }
    loaded.into_iter().map(|context| qnn.load(&folder.join(&context.file))).collect()
}

fn version(numbers: [u32; 3]) -> String {
    numbers.map(|number| number.to_string()).join(".")
}
