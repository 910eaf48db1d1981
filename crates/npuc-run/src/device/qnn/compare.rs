//! How two context binaries differ: in what a runner depends on, and in what it does not.
//!
//! A runner finds graphs and ports by their names and fills them as their shapes, types and encodings say. Versions, chip, sizes, and the
//! order in a file are none of its business, though they matter to a device.

use std::fmt::Debug;

use serde::Serialize;

use super::info::{ContextInfo, GraphInfo, TensorInfo};

/// Something that is not the same in both binaries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What it is about: the graph and the port, or `context` for the whole.
    pub about: String,
    /// The property, e.g. `shape`.
    pub what: &'static str,
    /// The first binary's.
    pub first: String,
    /// The second binary's.
    pub second: String,
    /// Whether a runner depends on it.
    pub depends: bool,
}

/// What stands for something that a binary does not have.
pub const ABSENT: &str = "absent";

/// Every difference between two binaries, in the order of the first.
pub fn compare(first: &ContextInfo, second: &ContextInfo) -> Vec<Difference> {
    let mut found = Found(Vec::new());
    found.rest("context", "build", &first.build, &second.build);
    found.rest("context", "QNN interface", &dotted(first.core), &dotted(second.core));
    found.rest("context", "HTP interface", &dotted(first.back_end), &dotted(second.back_end));
    found.rest("context", "form", &dotted(first.form), &dotted(second.form));
    found.rest("context", "SoC", &first.soc, &second.soc);
    let arch = |info: &ContextInfo| info.dsp_arch.map_or(ABSENT.into(), |arch| format!("v{arch}"));
    found.rest("context", "DSP", &arch(first), &arch(second));
    found.rest("context", "bytes", &first.bytes, &second.bytes);
    found.rest("context", "blob bytes", &first.blob_bytes, &second.blob_bytes);
    tensors("context", "tensor", [&first.tensors, &second.tensors], &mut found);
    let name = |graph: &GraphInfo| graph.name.clone();
    for (name, graphs) in pairs([&first.graphs, &second.graphs], name) {
        let about = format!("graph {name}");
        match graphs {
            [Some(first), Some(second)] => graph(&about, first, second, &mut found),
            [Some(_), None] => found.depends(&about, "graph", "present", ABSENT),
            [None, _] => found.depends(&about, "graph", ABSENT, "present"),
        }
    }
    found.order("context", "order of graphs", [&first.graphs, &second.graphs], name);
    found.0
}

fn graph(about: &str, first: &GraphInfo, second: &GraphInfo, found: &mut Found) {
    tensors(about, "input", [&first.inputs, &second.inputs], found);
    tensors(about, "output", [&first.outputs, &second.outputs], found);
    found.rest(about, "updatable tensors", &first.updatable, &second.updatable);
    let sizes = [first.sizes, second.sizes].map(|sizes| sizes.map_or([None; 8], |sizes| sizes.named().map(Some)));
    for (first, second) in sizes[0].iter().zip(&sizes[1]) {
        let told = |size: &Option<(&'static str, u64)>| size.map_or(ABSENT.into(), |(_, size)| size.to_string());
        let Some((what, _)) = first.or(*second) else { continue };
        found.rest(about, what, &told(first), &told(second));
    }
}

fn tensors(of: &str, kind: &str, lists: [&[TensorInfo]; 2], found: &mut Found) {
    let name = |tensor: &TensorInfo| tensor.name.clone();
    for (name, tensors) in pairs(lists, name) {
        let about = format!("{of}, {kind} {name}");
        match tensors {
            [Some(first), Some(second)] => {
                found.tell(&about, "type", &first.dtype, &second.dtype, true);
                found.tell(&about, "shape", &format!("{:?}", first.shape), &format!("{:?}", second.shape), true);
                found.tell(&about, "encoding", &first.encoding.to_text(), &second.encoding.to_text(), true);
            }
            [Some(_), None] => found.depends(&about, "port", "present", ABSENT),
            [None, _] => found.depends(&about, "port", ABSENT, "present"),
        }
    }
    let what = if kind == "output" { "order of outputs" } else { "order of inputs" };
    found.order(of, what, lists, name);
}

/// The items of that name in both lists: those of the first, then those that only the second has. Items of one name are paired in
/// their order.
fn pairs<T>(lists: [&[T]; 2], name: impl Fn(&T) -> String) -> Vec<(String, [Option<&T>; 2])> {
    let [first, second] = lists;
    let mut left: Vec<Option<&T>> = second.iter().map(Some).collect();
    let mut pairs = Vec::new();
    for item in first {
        let own = name(item);
        let other = left.iter_mut().find(|other| other.is_some_and(|other| name(other) == own));
        pairs.push((own, [Some(item), other.and_then(Option::take)]));
    }
    pairs.extend(left.into_iter().flatten().map(|item| (name(item), [None, Some(item)])));
    pairs
}

struct Found(Vec<Difference>);

impl Found {
    fn tell(&mut self, about: &str, what: &'static str, first: &str, second: &str, depends: bool) {
        if first != second {
            let (first, second) = (first.to_owned(), second.to_owned());
            self.0.push(Difference { about: about.to_owned(), what, first, second, depends });
        }
    }

    fn depends(&mut self, about: &str, what: &'static str, first: &str, second: &str) {
        self.tell(about, what, first, second, true);
    }

    fn rest(&mut self, about: &str, what: &'static str, first: &impl ToString, second: &impl ToString) {
        self.tell(about, what, &first.to_string(), &second.to_string(), false);
    }

    /// Lists with the same names in another order.
    fn order<T>(&mut self, about: &str, what: &'static str, lists: [&[T]; 2], name: impl Fn(&T) -> String) {
        let names = lists.map(|list| list.iter().map(&name).collect::<Vec<String>>());
        let sorted = names.clone().map(|mut names| {
            names.sort();
            names
        });
        if sorted[0] == sorted[1] {
            self.rest(about, what, &names[0].join(", "), &names[1].join(", "));
        }
    }
}

/// `major.minor.patch`
fn dotted(version: [u32; 3]) -> String {
    version.map(|part| part.to_string()).join(".")
}

#[cfg(test)]
mod tests {
    use super::super::info::{EncodingInfo, GraphSizes};
    use super::*;

    fn tensor(name: &str) -> TensorInfo {
        let encoding = EncodingInfo::ScaleOffset { scale: 0.5, offset: -32768, bits: None };
        TensorInfo { name: name.into(), id: 7, dtype: "u16".into(), shape: vec![1, 1, 32, 64], encoding }
    }

    fn whole() -> ContextInfo {
        let sizes = GraphSizes {
            spill_fill_bytes: 0,
            vtcm_bytes: 4 << 20,
            optimisation: 3,
            io_bytes: 100,
            op_bytes: 200,
            const_bytes: 300,
            ddr_bytes: 400,
            shared_weight_bytes: 500,
        };
        let graph = |name: &str| GraphInfo {
            name: name.into(),
            inputs: vec![tensor("x"), tensor("mask")],
            outputs: vec![tensor("y")],
            updatable: 0,
            sizes: Some(sizes),
        };
        ContextInfo {
            bytes: 1000,
            build: "v2.51".into(),
            core: [2, 40, 0],
            back_end: [5, 51, 0],
            form: [4, 0, 6],
            soc: 57,
            dsp_arch: Some(75),
            blob_bytes: 900,
            tensors: Vec::new(),
            graphs: vec![graph("s32"), graph("s1")],
        }
    }

    /// Differences as `about: what first | second`, with `!` where a runner depends on them.
    fn check(change: impl Fn(&mut ContextInfo), expected: &[&str]) {
        let mut changed = whole();
        change(&mut changed);
        let told = |differences: Vec<Difference>| -> Vec<String> {
            let line = |d: Difference| {
                format!("{}{}: {} {} | {}", if d.depends { "!" } else { "" }, d.about, d.what, d.first, d.second)
            };
            differences.into_iter().map(line).collect()
        };
        assert_eq!(told(compare(&whole(), &changed)), expected);
        assert_eq!(compare(&changed, &changed), []);
        // The other way round it is the same, with sides changed.
        let back = compare(&changed, &whole());
        let swapped = |d: Difference| Difference { first: d.second, second: d.first, ..d };
        let mut back: Vec<String> = told(back.into_iter().map(swapped).collect());
        let mut expected: Vec<String> = expected.iter().map(|line| (*line).to_owned()).collect();
        back.sort();
        expected.sort();
        assert_eq!(back, expected);
    }

    #[test]
    fn what_a_runner_depends_on() {
        check(|_| (), &[]);
        check(
            |c| c.graphs[0].inputs[1].shape[3] = 96,
            &["!graph s32, input mask: shape [1, 1, 32, 64] | [1, 1, 32, 96]"],
        );
        check(|c| c.graphs[1].outputs[0].dtype = "f16".into(), &["!graph s1, output y: type u16 | f16"]);
        check(
            |c| c.graphs[1].inputs[0].encoding = EncodingInfo::ScaleOffset { scale: 0.5, offset: 0, bits: None },
            &["!graph s1, input x: encoding (q - 32768) * 0.5 | q * 0.5"],
        );
        check(
            |c| c.graphs[1].inputs[0].encoding = EncodingInfo::None,
            &["!graph s1, input x: encoding (q - 32768) * 0.5 | none"],
        );
        check(
            |c| c.graphs[0].inputs[0].name = "z".into(),
            &["!graph s32, input x: port present | absent", "!graph s32, input z: port absent | present"],
        );
        check(|c| c.graphs[0].outputs.push(tensor("y")), &["!graph s32, output y: port absent | present"]);
        check(|c| drop(c.graphs.remove(1)), &["!graph s1: graph present | absent"]);
        check(|c| c.tensors.push(tensor("state")), &["!context, tensor state: port absent | present"]);
        check(
            |c| c.graphs[0].name = "s64".into(),
            &["!graph s32: graph present | absent", "!graph s64: graph absent | present"],
        );
    }

    #[test]
    fn what_it_does_not_depend_on() {
        check(|c| c.graphs[0].inputs.reverse(), &["graph s32: order of inputs x, mask | mask, x"]);
        check(|c| c.graphs.reverse(), &["context: order of graphs s32, s1 | s1, s32"]);
        check(|c| c.graphs[0].inputs[0].id = 8, &[]);
        check(
            |c| {
                (c.build, c.core, c.back_end, c.form) = ("v2.49".into(), [2, 38, 0], [5, 49, 0], [4, 0, 5]);
                (c.soc, c.dsp_arch, c.bytes, c.blob_bytes) = (69, None, 1001, 901);
            },
            &[
                "context: build v2.51 | v2.49",
                "context: QNN interface 2.40.0 | 2.38.0",
                "context: HTP interface 5.51.0 | 5.49.0",
                "context: form 4.0.6 | 4.0.5",
                "context: SoC 57 | 69",
                "context: DSP v75 | absent",
                "context: bytes 1000 | 1001",
                "context: blob bytes 900 | 901",
            ],
        );
        check(|c| c.graphs[1].updatable = 2, &["graph s1: updatable tensors 0 | 2"]);
        check(
            |c| {
                let sizes = c.graphs[1].sizes.as_mut().expect("sizes");
                (sizes.op_bytes, sizes.optimisation) = (201, 2);
            },
            &["graph s1: optimisation 3 | 2", "graph s1: operations 200 | 201"],
        );
        check(
            |c| c.graphs[1].sizes = None,
            &[
                "graph s1: spill and fill 0 | absent",
                "graph s1: VTCM 4194304 | absent",
                "graph s1: optimisation 3 | absent",
                "graph s1: ports 100 | absent",
                "graph s1: operations 200 | absent",
                "graph s1: constants 300 | absent",
                "graph s1: values in DDR 400 | absent",
                "graph s1: shared weights 500 | absent",
            ],
        );
    }
}
