//! Graphs written by hand, their weights in files, and a worker to give them to.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use half::f16;
use npuc::back::qnn::Description;
use npuc::back::qnn::description::{DataType, Node, Param, Role, ScaleOffset, Tensor};
use npuc::{DType, Shape};
use npuc_run::device::qnn::{Context, Options, Prepare, Qnn, Start, Stored};
use npuc_run::toolchain::{Tool, install};
use tempfile::TempDir;

/// How long a request may take: the machine may be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// The folder of the libraries, fetched on first use. Without them the tests fail and say why.
pub(crate) fn libraries() -> PathBuf {
    let installed = install(Tool::Qnn, &mut |line| eprintln!("{line}"));
    installed.unwrap_or_else(|error| panic!("these tests need Qualcomm's libraries:\n{error}")).libraries()
}

/// A worker of the program under test.
pub(crate) fn worker() -> Qnn {
    start(&libraries(), LIMIT).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn start(libraries: &Path, limit: Duration) -> npuc::Result<Qnn> {
    Qnn::start(&how(libraries, limit))
}

/// How a worker of the program under test is started.
pub(crate) fn how(libraries: &Path, limit: Duration) -> Start<'_> {
    static ARGS: LazyLock<[OsString; 1]> = LazyLock::new(|| [OsString::from("qnn-worker")]);
    Start { program: Path::new(env!("CARGO_BIN_EXE_npuc")), args: &*ARGS, libraries, limit, log: None }
}

/// A graph in the making.
pub(crate) struct Net {
    pub(crate) description: Description,
    pub(crate) weights: BTreeMap<String, npuc::Tensor>,
}

/// Numbers of 16 bits around 0 up to `largest`.
pub(crate) fn u16_around_0(largest: f32) -> Option<ScaleOffset> {
    Some(ScaleOffset { scale: largest / 32768.0, offset: -32768 })
}

impl Net {
    pub(crate) fn new(name: &str) -> Net {
        let description = Description { name: name.into(), tensors: Vec::new(), nodes: Vec::new() };
        Net { description, weights: BTreeMap::new() }
    }

    pub(crate) fn tensor(
        &mut self,
        name: &str,
        role: Role,
        dtype: DataType,
        shape: &[u32],
        encoding: Option<ScaleOffset>,
    ) -> usize {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.description.tensors.push(Tensor { name, role, dtype, shape, encoding });
        self.description.tensors.len() - 1
    }

    /// Whole numbers.
    pub(crate) fn numbers(&mut self, name: &str, dtype: DataType, shape: &[u32], numbers: &[i64]) -> usize {
        self.tensor(name, Role::Numbers(numbers.to_vec()), dtype, shape, None)
    }

    pub(crate) fn node(&mut self, op: &str, params: &[(&str, Param)], inputs: &[usize], outputs: &[usize]) {
        let name = format!("node.{}", self.description.tensors[outputs[0]].name);
        let params = params.iter().map(|(name, param)| ((*name).to_owned(), param.clone())).collect();
        let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
        self.description.nodes.push(Node { name, op: op.into(), params, inputs, outputs });
    }

    /// Writes description and weights into `folder`.
    pub(crate) fn save(&self, folder: &Path) -> (PathBuf, Vec<Stored>) {
        let path = folder.join(format!("{}.json", self.description.name));
        fs::write(&path, self.description.to_text()).unwrap();
        let file = folder.join(format!("{}.bin", self.description.name));
        let mut bytes = Vec::new();
        let mut stored = Vec::new();
        for (name, tensor) in &self.weights {
            let (dtype, shape, offset) = (tensor.dtype.name().to_owned(), tensor.shape.to_vec(), bytes.len() as u64);
            stored.push(Stored { name: name.clone(), dtype, shape, file: file.clone(), offset });
            bytes.extend_from_slice(tensor.stored_bytes());
        }
        fs::write(&file, bytes).unwrap();
        (path, stored)
    }
}

/// A request for these graphs, with the folder that holds their files.
pub(crate) fn request(nets: &[&Net], soc: u32, shared: bool) -> (TempDir, Prepare) {
    let folder = tempfile::tempdir().unwrap();
    let saved: Vec<_> = nets.iter().map(|net| net.save(folder.path())).collect();
    let (descriptions, weights): (Vec<_>, Vec<_>) = saved.into_iter().unzip();
    let (options, weights) = (Options::default(), weights.concat());
    (folder, Prepare { soc, shared, options, descriptions, weights, binary: None, keep: true, profile: None })
}

/// The context of one graph.
pub(crate) fn prepare(worker: &mut Qnn, net: &Net, soc: u32) -> npuc::Result<Context> {
    let (_folder, request) = request(&[net], soc, false);
    worker.prepare(&request, &mut |_| ())
}

/// Numbers from -1 to 1 that look random.
pub(crate) fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A matrix `[out, in]` in that format, with numbers of every size and scales that differ by row and block.
pub(crate) fn matrix(dtype: DType, outputs: usize, inputs: usize, seed: u64) -> npuc::Tensor {
    let mut random = noise(outputs * inputs * 2 + 4096, seed).into_iter();
    let mut next = |low: f32, high: f32| low + (high - low) * (random.next().unwrap() + 1.0) / 2.0;
    let mut bytes = Vec::new();
    for _ in 0..outputs {
        let scale = next(0.5, 1.0) / 64.0;
        let nibbles = |count: usize, bytes: &mut Vec<u8>, next: &mut dyn FnMut(f32, f32) -> f32| {
            bytes.extend((0..count / 2).map(|_| next(0.0, 256.0) as u8));
        };
        match dtype {
            DType::F16 => bytes.extend((0..inputs).flat_map(|_| f16::from_f32(next(-1.0, 1.0)).to_le_bytes())),
            DType::Int8 => {
                bytes.extend((scale / 64.0).to_le_bytes());
                bytes.extend((0..inputs).map(|_| next(-127.9, 127.9) as i8 as u8));
            }
            DType::Int4 => {
                bytes.extend(scale.to_le_bytes());
                nibbles(inputs, &mut bytes, &mut next);
            }
            DType::Lpbq4(group) => {
                bytes.extend((scale / 16.0).to_le_bytes());
                for _ in 0..inputs / group.elements() {
                    bytes.push(next(1.0, 16.99) as u8);
                    nibbles(group.elements(), &mut bytes, &mut next);
                }
            }
            DType::Bw4(group) => {
                for _ in 0..inputs / group.elements() {
                    bytes.extend(f16::from_f32(next(0.5, 1.0) / 64.0).to_le_bytes());
                    bytes.extend(f16::from_f32(next(-3.0, 3.0)).to_le_bytes());
                    nibbles(group.elements(), &mut bytes, &mut next);
                }
            }
            other => panic!("no matrix in {other}"),
        }
    }
    npuc::Tensor::in_memory(dtype, Shape(vec![outputs, inputs]), bytes.into()).unwrap()
}

/// The signal in `expected` over the error of `have`, in dB.
pub(crate) fn sqnr_db(have: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(have.len(), expected.len());
    let signal: f64 = expected.iter().map(|x| x * x).sum();
    let noise: f64 = have.iter().zip(expected).map(|(have, x)| (f64::from(*have) - x).powi(2)).sum();
    10.0 * (signal / noise.max(f64::MIN_POSITIVE)).log10()
}
