//! `npuc tune`: a build for Torq in the fastest of the forms that are worth trying, by the compiler's own estimate.
//!
//! The forms compute the same numbers. One choice after the other is varied while the best of the others are kept, over modules of
//! single layers, of which those with the same outline are compiled once; the whole model as one module comes last.

use std::collections::{BTreeSet, HashMap, HashSet};

use npuc::back::stablehlo::{CacheWrites, Dialect, Module, Products, Style, export};
use npuc::bundle::write::{ExtraContent, ExtraFile};
use npuc::fit::Request;
use npuc::ir::Graph;
use npuc::model::{Chunks, layers};
use npuc::{Code, Diagnostic, Error, Result, target};
use npuc_run::modules;
use npuc_run::toolchain::Installed;
use npuc_run::toolchain::torq_profile::TorqProfile;
use serde::Serialize;

use super::chip::{Asked, fitted};
use super::modules::{Form, Times, asked, finish, making, refuse_flags, style, tool};
use crate::args::TuneArgs;
use crate::output::{Output, bytes};

/// The file in the bundle that holds all tries.
const TRIES: &str = "tune.json";
/// The flag that says how weights are loaded ahead, and what it can be; nothing is the compiler's own way.
const ALGORITHM: (&str, [&str; 3]) = ("--torq-prefetch-algorithm=", ["stream-schedule", "", "none"]);
/// The flag for the part of the memory on the chip that weights may be loaded ahead into, in percent.
const BUDGET: (&str, [&str; 4]) = ("--torq-prefetch-matmul-tile-budget-percent=", ["65", "", "50", "80"]);

/// A form that was tried.
#[derive(Clone, Debug, Serialize)]
struct Try {
    /// `one` of the whole model, or `one a layer`.
    modules: &'static str,
    products: Products,
    cache_writes: CacheWrites,
    /// All flags of the compiler.
    flags: Vec<String>,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Outcome {
    Compiled {
        /// By the compiler's own model, of all modules.
        estimated_cycles: u64,
        /// How much less the idler slice works than the busier one, as a part of that.
        slices_apart: f64,
        /// Work that does not run on the slices.
        events_off_the_slices: usize,
        /// Of the distinct modules.
        compile_ms: u64,
        peak_rss_bytes: u64,
    },
    Refused {
        refused: String,
    },
}

/// Forms whose slices are further apart than this, as a part of the busier one's work, are taken only where there are no others: half of the
/// chip would wait.
const MOST_APART: f64 = 0.2;

/// Whether the slices are too far apart, then the cycles.
type Rank = (bool, u64);

impl Outcome {
    /// The less the better; `None` for a form that the compiler refuses.
    fn rank(&self) -> Option<Rank> {
        match self {
            Outcome::Compiled { estimated_cycles, slices_apart, .. } => {
                Some((*slices_apart > MOST_APART, *estimated_cycles))
            }
            Outcome::Refused { .. } => None,
        }
    }
}

/// What one compilation told.
#[derive(Clone)]
struct Told {
    profile: TorqProfile,
    wall_ms: u64,
    peak_rss_bytes: u64,
}

/// The outline of a module and the flags that it is compiled with.
type Key = (String, Vec<String>);

/// What a form is tried with.
struct Tuner<'a> {
    args: &'a TuneArgs,
    asked: &'a Asked,
    tool: &'a Installed,
    /// What was compiled before, by outline and flags.
    known: HashMap<Key, std::result::Result<Told, String>>,
    /// The modules of every form that was tried.
    seen: HashSet<Vec<Key>>,
    tries: Vec<Try>,
    output: Output,
}

/// A form with the cut of the model that it goes with.
#[derive(Clone)]
struct Candidate {
    whole: bool,
    form: Form,
}

/// Runs the command.
pub(crate) fn command(args: &TuneArgs, output: Output) -> Result<()> {
    let build = &args.build;
    let target = target::find(&build.target)?;
    if target.back_end()? != npuc::back::BackEnd::Torq {
        let fault = Diagnostic::error(Code::BadArgument, "forms are tried for Torq alone").subject(&target.name);
        return Err(fault.need("a target whose compiler estimates cycles: sl2610").into());
    }
    if build.chip.chunks.is_some() || build.no_compile {
        let fault = Diagnostic::error(Code::BadArgument, "--chunks and --no-compile have no use here");
        return Err(fault.help("how the model is cut is one of the things that are tried").into());
    }
    refuse_flags(build)?;
    let tool = tool(build, &target)?;
    let tool = tool.ok_or_else(|| Diagnostic::error(Code::MissingTool, "there is no compiler to ask"))?;
    let style = style(build, Dialect::Torq)?;
    let mut times = Times::default();
    let mut asked = times.quantise_ms.measure(|| asked(build, &target, output))?;
    let tuner = Tuner {
        args,
        asked: &asked,
        tool: &tool,
        known: HashMap::new(),
        seen: HashSet::new(),
        tries: Vec::new(),
        output,
    };
    let (best, tries) = tuner.search(style)?;
    let text = serde_json::to_vec_pretty(&tries).expect("tries have only text keys and plain values");
    let files = vec![ExtraFile { path: TRIES.into(), content: ExtraContent::Bytes(text) }];
    asked.request.chunks = Some(best.chunks(&asked));
    output.note(&format!("{} forms tried; cycles are the compiler's estimate; all are in {TRIES}", tries.len()));
    finish(build, asked, (best.form, Some(tool), files), times, output)
}

impl Candidate {
    fn chunks(&self, asked: &Asked) -> Chunks {
        Chunks::Layers(match self.whole {
            true => vec![layers(&asked.checkpoint.config)],
            false => vec![1; layers(&asked.checkpoint.config)],
        })
    }

    fn with_flag(&self, name: &str, value: &str) -> Candidate {
        let mut flags = self.form.flags.clone();
        flags.retain(|flag| !flag.starts_with(name));
        flags.push(format!("{name}{value}"));
        Candidate { form: Form { flags, ..self.form.clone() }, ..self.clone() }
    }

    fn with_style(&self, change: impl FnOnce(Style) -> Style) -> Candidate {
        Candidate { form: Form { style: change(self.form.style), ..self.form.clone() }, ..self.clone() }
    }
}

/// What is varied while all else stays.
#[derive(Clone, Copy)]
enum Choice {
    Algorithm,
    Budget,
    Products,
    CacheWrites,
    /// Of the whole model, with caches as such modules need them.
    OneModule,
}

impl Choice {
    fn candidates(self, from: &Candidate) -> Vec<Candidate> {
        match self {
            Choice::Algorithm => ALGORITHM.1.map(|value| from.with_flag(ALGORITHM.0, value)).to_vec(),
            Choice::Budget => BUDGET.1.map(|value| from.with_flag(BUDGET.0, value)).to_vec(),
            Choice::Products => [Products::Joined, Products::Apart, Products::Halved]
                .map(|products| from.with_style(|style| Style { products, ..style }))
                .to_vec(),
            Choice::CacheWrites => [CacheWrites::Chosen, CacheWrites::Added]
                .map(|cache_writes| from.with_style(|style| Style { cache_writes, ..style }))
                .to_vec(),
            Choice::OneModule => {
                let cache_writes = CacheWrites::Chosen;
                vec![Candidate { whole: true, ..from.with_style(|style| Style { cache_writes, ..style }) }]
            }
        }
    }
}

impl Tuner<'_> {
    /// The fastest form, and all tries.
    fn search(mut self, style: Style) -> Result<(Candidate, Vec<Try>)> {
        let start = Candidate { whole: false, form: Form { style, flags: Vec::new() } };
        let mut best = (self.rank(&start)?, start);
        let mut choices = vec![Choice::Algorithm, Choice::Budget, Choice::Products, Choice::CacheWrites];
        if !self.args.layers_only {
            choices.push(Choice::OneModule);
        }
        for choice in choices {
            for candidate in choice.candidates(&best.1) {
                let rank = self.rank(&candidate)?;
                if rank.is_some_and(|rank| best.0.is_none_or(|least| rank < least)) {
                    best = (rank, candidate);
                }
            }
        }
        match best.0 {
            Some(_) => Ok((best.1, self.tries)),
            None => Err(refused(&self.tries)),
        }
    }

    /// The rank of a form; `None` if the compiler refuses it, or if the same modules were tried before. A form that does not fit, and a
    /// compiler that fails for a reason that npuc does not know, are errors.
    fn rank(&mut self, candidate: &Candidate) -> Result<Option<Rank>> {
        let Candidate { whole, form } = candidate;
        let mut request = self.asked.request.clone();
        request.chunks = Some(candidate.chunks(self.asked));
        let mended = fitted(&self.args.build, &self.asked.checkpoint, &request)?;
        let exported = export(&self.asked.checkpoint, &mended.request, &mended.fit.parts, form.style, &form.flags)?;
        let modules: Vec<(&Module, &Graph)> = exported
            .graphs
            .iter()
            .filter_map(|emitted| emitted.module().map(|(_, module)| (module, &emitted.graph)))
            .collect();
        let key = |&(module, graph): &(&Module, &Graph)| -> Key {
            (module.outline(), target::graph_flags(&request.target, graph, &form.flags))
        };
        let keys: Vec<Key> = modules.iter().map(key).collect();
        if !self.seen.insert(keys.clone()) {
            return Ok(None);
        }
        let mut told = Vec::new();
        let flags: BTreeSet<String> = keys.iter().flat_map(|(_, flags)| flags.clone()).collect();
        for ((module, graph), key) in modules.into_iter().zip(keys) {
            told.push(self.told(key, (module, graph), form, &request)?);
        }
        let outcome = match told.into_iter().collect::<std::result::Result<Vec<Told>, String>>() {
            Ok(told) => outcome(&told),
            Err(refused) => Outcome::Refused { refused },
        };
        let rank = outcome.rank();
        let Style { products, cache_writes, .. } = form.style;
        let modules = if *whole { "one" } else { "one a layer" };
        let new = Try { modules, products, cache_writes, flags: flags.into_iter().collect(), outcome };
        self.output.note(line(&new).trim_end());
        self.tries.push(new);
        Ok(rank)
    }

    /// What the compiler says of a module, or said of one with the same outline.
    fn told(
        &mut self,
        key: Key,
        (module, graph): (&Module, &Graph),
        form: &Form,
        request: &Request,
    ) -> Result<std::result::Result<Told, String>> {
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let spinner = self.output.spinner("trying");
        let mut say = |text: &str| spinner.set_message(text.to_owned());
        let mut making = making(&self.args.build, request, form, self.tool, &mut say);
        making.profile = true;
        let told = match modules::tried(module, graph, &mut making) {
            Ok((compiled, Some(profile))) => {
                Ok(Told { profile, wall_ms: compiled.wall_ms, peak_rss_bytes: compiled.peak_rss_bytes })
            }
            Ok((_, None)) => Err("the compiler gave no estimate".to_owned()),
            Err(error) => match error.diagnostics().first() {
                Some(fault) if fault.code == Code::VendorRefusal => Err(fault.message.clone()),
                // Later forms may well make the compiler crash; a tool that takes not even the first is broken.
                Some(fault) if !self.tries.is_empty() => Err(fault.message.clone()),
                Some(_) | None => return Err(error),
            },
        };
        self.known.insert(key, told.clone());
        Ok(told)
    }
}

/// No form is taken.
fn refused(tries: &[Try]) -> Error {
    let refused = tries.iter().find_map(|tried| match &tried.outcome {
        Outcome::Refused { refused } => Some(refused.clone()),
        Outcome::Compiled { .. } => None,
    });
    Diagnostic::error(Code::VendorRefusal, "the compiler takes the model in none of the forms")
        .have(refused.unwrap_or_default())
        .help("build it with `npuc build` for the whole message")
        .into()
}

/// All modules of a form together.
fn outcome(told: &[Told]) -> Outcome {
    let busy = |slice: u32| -> u64 {
        told.iter().map(|one| one.profile.slices.get(&slice).map_or(0, |work| work.busy_cycles)).sum()
    };
    let (zero, one) = (busy(0), busy(1));
    Outcome::Compiled {
        estimated_cycles: told.iter().map(|one| one.profile.cycles).sum(),
        slices_apart: 1.0 - zero.min(one) as f64 / zero.max(one).max(1) as f64,
        events_off_the_slices: told.iter().map(|one| one.profile.off_slices()).sum(),
        compile_ms: told.iter().map(|one| one.wall_ms).sum(),
        peak_rss_bytes: told.iter().map(|one| one.peak_rss_bytes).max().unwrap_or(0),
    }
}

fn line(tried: &Try) -> String {
    let Try { modules, products, cache_writes, flags, outcome } = tried;
    let flags: Vec<&str> = flags.iter().filter_map(|flag| flag.strip_prefix("--torq-prefetch-")).collect();
    let products = match products {
        Products::Apart => "apart",
        Products::Joined => "joined",
        Products::Halved => "halved",
    };
    let rows = match cache_writes {
        CacheWrites::Chosen => "chosen",
        CacheWrites::Added => "added",
    };
    let form = format!("modules {modules}, products {products}, cache rows {rows}, {}", flags.join(" "));
    match outcome {
        Outcome::Compiled { estimated_cycles, slices_apart, events_off_the_slices, peak_rss_bytes, .. } => {
            let apart = 100.0 * slices_apart;
            format!(
                "{estimated_cycles:>12} cycles, slices {apart:.1} % apart, {events_off_the_slices} events off them, compiler {}: {form}",
                bytes(*peak_rss_bytes)
            )
        }
        Outcome::Refused { refused } => format!("     refused: {form}: {refused}"),
    }
}
