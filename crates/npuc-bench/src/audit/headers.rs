//! Headers by themselves: what says what computed agrees.

use crate::record::{Class, Host, Plan};
use crate::results::Results;

use super::{Book, Check};

pub(super) fn headers(results: &Results, book: &mut Book) {
    let Some((_, first)) = results.headers.first() else { return };
    for (line, header) in &results.headers {
        if let Some(message) = disagreement(&header.plan) {
            book.fault(Check::Structure, *line, format!("the header does not agree with itself: {message}"));
        }
        let changes = changes(&first.host, &header.host);
        if !changes.is_empty() {
            book.note(Check::Machine, *line, format!("another machine or system: {}", changes.join(", ")));
        }
    }
}

/// What the words of a back end's class are.
fn class_of(back_end: &str) -> Option<Class> {
    match back_end {
        "host" | "litert" | "iree-cpu" => Some(Class::Host),
        "qnn" | "iree-vulkan" | "torq-sim" => Some(Class::Emulation),
        "null" => Some(Class::Null),
        _ => None,
    }
}

fn disagreement(plan: &Plan) -> Option<String> {
    let Plan { class, back_end, measured_on, .. } = plan;
    let is_null = match class {
        Class::Null => true,
        Class::Host | Class::Emulation | Class::Device => false,
        Class::Unstated => return Some(format!("class is {class}, which a run of npuc never is")),
    };
    if class_of(back_end).is_some_and(|of| of != *class) {
        return Some(format!("class is {class}, back_end is {back_end}"));
    }
    if (measured_on == Class::Null.name()) != is_null {
        return Some(format!("class is {class}, measured_on is {measured_on}"));
    }
    let have = if plan.null.is_some() { "there" } else { "absent" };
    (plan.null.is_some() != is_null).then(|| format!("class is {class}, the virtual latencies in plan.null are {have}"))
}

/// The facts of a machine that changed, in words.
fn changes(first: &Host, later: &Host) -> Vec<String> {
    let facts = |host: &Host| {
        let Host { os, kernel, arch, cpu, cpus, memory_bytes } = host;
        let memory = memory_bytes.map_or_else(|| "not known".to_string(), |bytes| format!("{bytes} bytes"));
        let cpu = cpu.clone().unwrap_or_else(|| "not known".into());
        [
            ("system", os.clone()),
            ("kernel", kernel.clone()),
            ("architecture", arch.clone()),
            ("processor", cpu),
            ("logical processors", cpus.to_string()),
            ("memory", memory),
        ]
    };
    let pairs = facts(first).into_iter().zip(facts(later));
    let changed = pairs.filter(|(first, later)| first != later);
    changed.map(|((name, first), (_, later))| format!("{name} {later}, first {first}")).collect()
}
