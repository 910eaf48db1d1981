//! `npuc serve-jsonl`: answers requests from standard input.

use npuc::Result;
use npuc_bench::clock::SystemClock;
use npuc_bench::serve::{Server, serve};
use npuc_run::text::{Sampling, SamplingConfig};

use crate::args::ServeArgs;
use crate::bench::{model, null, open};
use crate::output::Output;

/// Runs the command.
pub(crate) fn command(args: &ServeArgs, output: Output) -> Result<()> {
    let sampling =
        Sampling::new(SamplingConfig { temperature: args.temperature, seed: args.seed, ..SamplingConfig::default() })?;
    let null = null(&args.null, args.device.on)?;
    let clock = SystemClock::start(null.as_ref().map(|null| null.time.clone()));
    let date = crate::run::date(args.date.as_deref())?;
    let (program, mut session) = open(&args.model, &args.device, null.as_ref())?;
    output.warnings(&program.warnings);
    let model = model(&program, &session, &args.model, date);
    let (class, measured_on) = (args.device.on.class(), args.device.on.name());
    let server = Server { session: &mut session, model, eos: &program.eos, sampling, class, measured_on };
    serve(server, std::io::stdin().lock(), &mut std::io::stdout().lock(), &clock)
}
