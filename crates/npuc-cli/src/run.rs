//! `npuc run`: answers a prompt, holds a conversation, or continues token ids.

use std::io::{BufRead, IsTerminal};
use std::path::Path;

use chrono::Datelike;
use npuc::bundle::is_bundle;
use npuc::front::{self, non_finite};
use npuc::{Code, Diagnostic, Error, Result};
use npuc_run::generate::{Answer, Request, fit_prompt, generate};
use npuc_run::memory::peak_rss_bytes;
use npuc_run::program::Program;
use npuc_run::session::Session;
use npuc_run::text::{Date, Message, Sampler, Sampling, SamplingConfig, TextModel};
use serde::Serialize;

use crate::args::{PromptArgs, RunArgs, SamplingArgs, threads};
use crate::corpus::{name_ids_file, read_ids, text_model};
use crate::output::{Output, bytes};
use crate::session;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    answer: Answer,
    truncated_tokens: usize,
    /// Where the figures come from.
    measured_on: &'static str,
    threads: usize,
    peak_rss_bytes: Option<u64>,
    warnings: Vec<Diagnostic>,
}

/// Everything that stays the same from one answer to the next.
struct Runner<'a> {
    args: &'a RunArgs,
    output: Output,
    program: &'a Program,
    session: Session,
    sampler: Sampler,
}

/// Runs the command.
pub(crate) fn command(args: &RunArgs, output: Output) -> Result<()> {
    let sampling = sampling(&args.sampling)?;
    refuse_idle_flags(args)?;
    let spinner = output.spinner("opening the model");
    let (program, session) = session::open(&args.model, &args.device, None, &args.dump)?;
    drop(spinner);
    output.warnings(&program.warnings);
    let sampler = Sampler::new(sampling);
    let mut runner = Runner { args, output, program: &program, session, sampler };
    let PromptArgs { prompt, chat, ids, .. } = &args.prompt;
    let answered = match (prompt, chat, ids) {
        (None, false, Some(file)) => runner.answer(&read_ids(file)?).map(|_| ()).map_err(|e| name_ids_file(e, file)),
        (Some(text), false, None) => {
            let ids = runner.text()?.tokenizer.encode(text, true)?;
            runner.answer(&ids).map(|_| ())
        }
        (Some(text), true, None) => runner.converse([Ok(text.clone())]),
        (None, true, None) => runner.converse_with_stdin(),
        _ => Err(Diagnostic::error(Code::BadArgument, "there is nothing to run the model on")
            .need("a prompt: -p TEXT, --chat or --ids FILE")
            .help("to talk to the model: npuc run MODEL --chat")
            .into()),
    };
    if answered.as_ref().is_err_and(|e| e.diagnostics().iter().any(|d| d.code == Code::Unfaithful)) {
        output.warnings(&non_finite_weights(&args.model));
    }
    answered?;
    runner.dump()
}

/// Flags that would change nothing are a misunderstanding, not a wish.
fn refuse_idle_flags(args: &RunArgs) -> Result<()> {
    let PromptArgs { chat, system, date, .. } = &args.prompt;
    let SamplingArgs { temperature, top_k, top_p, min_p, .. } = args.sampling;
    let greedy = temperature == 0.0;
    let idle = [
        ("--system", !chat && system.is_some(), "--chat"),
        ("--date", !chat && date.is_some(), "--chat"),
        ("--top-k", greedy && top_k != 0, "--temperature above 0"),
        ("--top-p", greedy && top_p != 1.0, "--temperature above 0"),
        ("--min-p", greedy && min_p != 0.0, "--temperature above 0"),
    ];
    let faults = idle.into_iter().filter(|(_, idle, _)| *idle).map(|(flag, _, need)| {
        let fault = Diagnostic::error(Code::BadArgument, format!("{flag} does nothing without {need}"));
        fault.help("add it, or leave the flag out")
    });
    Error::check(faults.collect())
}

/// The weights that can be to blame for scores that are not numbers.
fn non_finite_weights(model: &Path) -> Vec<Diagnostic> {
    if is_bundle(model) {
        return Vec::new();
    }
    front::open(model).map(|checkpoint| non_finite(&checkpoint)).unwrap_or_default()
}

impl Runner<'_> {
    fn text(&self) -> Result<&TextModel> {
        text_model(self.program, &self.args.model)
    }

    /// Answers one prompt: streams the text, then tells the figures.
    fn answer(&mut self, prompt: &[u32]) -> Result<Answer> {
        let (args, output) = (self.args, self.output);
        let (prompt, truncated) = fit_prompt(prompt, args.max_new, self.session.capacity(), args.truncate)?;
        if truncated > 0 {
            output.note(&format!("note: tokens dropped at the beginning of the prompt (--truncate): {truncated}"));
        }
        let request = Request { prompt, max_new: args.max_new, stop: &args.stop, ignore_eos: args.ignore_eos };
        let mut printed = Ok(());
        let mut on_text = |piece: &str| {
            if !output.json && printed.is_ok() {
                printed = output.text(piece);
            }
        };
        let Program { text, eos, .. } = self.program;
        let text = text.as_ref().ok().and_then(Option::as_ref);
        let answer = generate(&mut self.session, &request, text, eos, &mut self.sampler, &mut on_text)?;
        printed?;
        let report = Report {
            answer,
            truncated_tokens: truncated,
            measured_on: args.device.on.name(),
            threads: threads(args.device.threads),
            peak_rss_bytes: peak_rss_bytes(),
            warnings: self.program.warnings.clone(),
        };
        let shown = match &report.answer.text {
            Some(_) => "\n".to_string(),
            None => format!("{}\n", report.answer.ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")),
        };
        output.result(&report, &shown)?;
        output.note(&figures(&report));
        Ok(report.answer)
    }

    /// Answers message after message, each with all before it.
    fn converse(&mut self, lines: impl IntoIterator<Item = Result<String>>) -> Result<()> {
        let date = date(self.args.prompt.date.as_deref())?;
        let system = self.args.prompt.system.iter().map(|text| Message::new("system", text));
        let mut messages: Vec<Message> = system.collect();
        for line in lines {
            messages.push(Message::new("user", &line?));
            let answered =
                self.text().and_then(|text| text.encode_chat(&messages, date)).and_then(|ids| self.answer(&ids));
            match answered {
                Ok(answer) => messages.push(Message::new("assistant", answer.text.unwrap_or_default())),
                Err(error) if std::io::stdin().is_terminal() && self.args.prompt.prompt.is_none() => {
                    // The person is still there and can say something else.
                    messages.pop();
                    self.output.note(&error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn converse_with_stdin(&mut self) -> Result<()> {
        self.text()?;
        if std::io::stdin().is_terminal() {
            self.output.note("Type a message and press Enter; Ctrl-D ends the conversation.");
        }
        let lines = std::io::stdin().lock().lines().map(|line| {
            line.map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read standard input: {e}")).into())
        });
        self.converse(lines.filter(|line| !line.as_ref().is_ok_and(|line| line.trim().is_empty())))
    }

    /// Writes the kept values of the last step.
    fn dump(&self) -> Result<()> {
        let Some(path) = &self.args.dump_file else { return Ok(()) };
        let values: Vec<_> = self.session.kept().collect();
        npuc_run::dump::write(path, &values)?;
        self.output.note(&format!("wrote {} to {}", self.args.dump.join(", "), path.display()));
        Ok(())
    }
}

fn sampling(args: &SamplingArgs) -> Result<Sampling> {
    let &SamplingArgs { temperature, top_k, top_p, min_p, repetition_penalty, seed } = args;
    Sampling::new(SamplingConfig { temperature, top_k, top_p, min_p, repetition_penalty, seed })
}

/// The given date, or today's where the user is.
pub(crate) fn date(given: Option<&str>) -> Result<Date> {
    match given {
        Some(text) => Date::parse(text),
        None => {
            let today = chrono::Local::now().date_naive();
            Date::new(today.year(), today.month(), today.day())
        }
    }
}

fn figures(report: &Report) -> String {
    let Answer { prompt_tokens, reused_tokens, ids, ttft_ms, prefill_tokens_per_s, decode_tokens_per_s, .. } =
        &report.answer;
    let computed = prompt_tokens - reused_tokens;
    let decode = decode_tokens_per_s.map_or(String::new(), |rate| format!(" at {rate:.1} tok/s"));
    let memory = report.peak_rss_bytes.map_or(String::new(), |peak| format!(", peak memory {}", bytes(peak)));
    format!(
        "[{}, {} threads: {computed} prompt tokens in {ttft_ms:.0} ms ({prefill_tokens_per_s:.1} tok/s), \
         {} tokens{decode}{memory}]",
        report.measured_on,
        report.threads,
        ids.len(),
    )
}
