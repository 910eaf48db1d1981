//! The host device: npuc's own executor on a pool of threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use npuc::exec::Executor;
use npuc::ir::{Graph, ValueId};
use npuc::quant::Recorder;
use npuc::{Code, Diagnostic, Result, Tensor};
use rayon::ThreadPool;

/// More threads than any machine npuc runs on has cores for.
const MOST_THREADS: usize = 256;

/// A pool for all graphs of a session.
///
/// Errors: no threads or too many, or the system refuses to start them.
pub fn thread_pool(threads: usize) -> Result<Arc<ThreadPool>> {
    if threads == 0 || threads > MOST_THREADS {
        return Err(Diagnostic::error(Code::BadArgument, "the number of threads is out of range")
            .need(format!("1 to {MOST_THREADS}"))
            .have(threads)
            .into());
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|e| {
        Diagnostic::error(Code::BadArgument, format!("cannot start {threads} threads: {e}")).help("use fewer threads")
    })?;
    Ok(Arc::new(pool))
}

/// One graph on the host.
pub struct HostStep {
    executor: Executor,
    pool: Arc<ThreadPool>,
    /// Sees every value as it is computed, where ranges are wanted.
    recorder: Option<Recorder>,
}

impl HostStep {
    /// Prepares the graph over its weights; values in `keep` can be read after a step.
    pub fn new(
        graph: &Graph,
        weights: &BTreeMap<String, Tensor>,
        keep: &[ValueId],
        pool: Arc<ThreadPool>,
    ) -> Result<HostStep> {
        Ok(HostStep { executor: Executor::new(graph, weights, keep)?, pool, recorder: None })
    }

    /// The same, recording the ranges of all values of the graph.
    pub fn recording(mut self, graph: &Graph) -> HostStep {
        self.recorder = Some(Recorder::new(graph));
        self
    }

    /// What was recorded, if anything was to be.
    pub fn into_recorder(self) -> Option<Recorder> {
        self.recorder
    }

    /// Computes one step from the buffers of the input ports, in port order.
    pub fn run(&mut self, inputs: &[&[Vec<f32>]]) {
        let (executor, recorder) = (&mut self.executor, &mut self.recorder);
        self.pool.install(|| match recorder {
            None => executor.run(inputs),
            Some(recorder) => executor.run_observed(inputs, &mut |id, elements| recorder.see(id, elements)),
        });
    }

    /// The executor, for its ports and results.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }
}
