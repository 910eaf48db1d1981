//! The host device: npuc's own executor on a pool of threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use npuc::exec::Executor;
use npuc::ir::{Def, Graph, Value, ValueId};
use npuc::quant::Encodings;
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

/// Is shown every input of a graph and every value right after it is computed, see [`Executor::run_observed`].
pub type Observer = Box<dyn FnMut(ValueId, &[f32]) + Send>;

/// One graph on the host.
pub struct HostStep {
    executor: Executor,
    pool: Arc<ThreadPool>,
    observer: Option<Observer>,
    /// What each value is called in reports, where it is computed in whole numbers.
    names: Vec<String>,
}

impl HostStep {
    /// Prepares the graph over its weights; values in `keep` can be read after a step.
    pub fn new(
        graph: &Graph,
        weights: &BTreeMap<String, Tensor>,
        keep: &[ValueId],
        pool: Arc<ThreadPool>,
    ) -> Result<HostStep> {
        HostStep::with_encodings(graph, weights, None, keep, pool)
    }

    /// The same in the whole numbers of `encodings`, if there are any; see [`Executor::with_encodings`].
    pub fn with_encodings(
        graph: &Graph,
        weights: &BTreeMap<String, Tensor>,
        encodings: Option<&Encodings>,
        keep: &[ValueId],
        pool: Arc<ThreadPool>,
    ) -> Result<HostStep> {
        let Some(encodings) = encodings else {
            let executor = Executor::new(graph, weights, keep)?;
            return Ok(HostStep { executor, pool, observer: None, names: Vec::new() });
        };
        let name = |(place, value): (usize, &Value)| match &value.def {
            Def::Input | Def::Weight => value.name.clone(),
            Def::Op { op, .. } => format!("{}/{}.{place}", value.name, op.name()),
        };
        let names = graph.values.iter().enumerate().map(name).collect();
        let executor = pool.install(|| Executor::with_encodings(graph, weights, encodings, keep))?;
        Ok(HostStep { executor, pool, observer: None, names })
    }

    /// The values of which numbers were cut off in all steps so far, with how many.
    pub fn saturated(&self) -> Vec<(String, u64)> {
        let named = |(value, count): (ValueId, u64)| (self.names[value.index()].clone(), count);
        self.executor.saturated().into_iter().map(named).collect()
    }

    /// From now on gives memory of weights back after each use, see [`Executor::spare_memory`].
    pub fn spare_memory(&mut self) {
        self.executor.spare_memory();
    }

    /// The same, showing its values to `observer`.
    pub fn observed(mut self, observer: Observer) -> HostStep {
        self.observer = Some(observer);
        self
    }

    /// Computes one step from the buffers of the input ports, in port order.
    pub fn run<B: AsRef<[f32]> + Sync>(&mut self, inputs: &[&[B]]) {
        let (executor, observer) = (&mut self.executor, &mut self.observer);
        self.pool.install(|| match observer {
            None => executor.run(inputs),
            Some(observer) => executor.run_observed(inputs, observer),
        });
    }

    /// The executor, for its ports and results.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }
}
