//! Choices against all that there are, what is legal, and recipes that say what was chosen in few lines.

use super::*;
use crate::front::Checkpoint;
use crate::quant::plan::Plan;
use crate::quant::plan::tests::model_of;
use crate::target;

/// Numbers below `limit` from a linear congruential generator.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

/// The least cost within the budget by trying every choice.
fn least(groups: &[Vec<Candidate>], budget: u64) -> Option<f64> {
    match groups.split_first() {
        None => Some(0.0),
        Some((group, rest)) => {
            let fits = group.iter().filter(|candidate| candidate.bytes <= budget);
            let costs = fits.filter_map(|candidate| Some(candidate.cost + least(rest, budget - candidate.bytes)?));
            costs.min_by(f64::total_cmp)
        }
    }
}

fn instance(numbers: &mut Numbers, groups: u64, unit: u64) -> Vec<Vec<Candidate>> {
    let candidate = |numbers: &mut Numbers| Candidate {
        format: DType::Q4_0,
        bytes: unit * (1 + numbers.below(40)),
        cost: numbers.below(1000) as f64 / 8.0,
    };
    let group = |numbers: &mut Numbers| pareto((0..1 + numbers.below(5)).map(|_| candidate(numbers)).collect());
    (0..groups).map(|_| group(numbers)).collect()
}

/// With few bytes, or many in common units, the choice is the best one, never over the budget.
#[test]
fn choices_are_the_best() {
    let mut numbers = Numbers(1);
    let (mut none, mut better_than_smallest) = (0, 0);
    for round in 0..400 {
        let unit = [1, 1_000_003][round % 2];
        let count = 1 + numbers.below(6);
        let groups = instance(&mut numbers, count, unit);
        let budget = numbers.below(40 * count) * unit + numbers.below(unit);
        let expected = least(&groups, budget);
        let chosen = choose(&groups, budget);
        assert_eq!(chosen.as_ref().map(|chosen| cost(&groups, chosen)), expected, "{groups:?} {budget}");
        let Some(chosen) = chosen else {
            none += 1;
            continue;
        };
        assert!(bytes(&groups, &chosen) <= budget, "{groups:?} {budget}");
        let bound = bound(&groups, budget).unwrap();
        assert!(bound <= cost(&groups, &chosen) + 1e-9, "{groups:?} {budget}");
        better_than_smallest += usize::from(cost(&groups, &chosen) < cost(&groups, &vec![0; groups.len()]));
    }
    assert!(none > 20 && better_than_smallest > 100, "{none} {better_than_smallest}");
}

/// Where bytes have no common unit and the span is wide, the choice is within half a percent of the bound.
#[test]
fn choices_of_many_are_near_the_bound() {
    let mut numbers = Numbers(2);
    for _ in 0..5 {
        let groups: Vec<Vec<Candidate>> = (0..200)
            .map(|_| {
                let elements = 100_000 + numbers.below(900_000);
                let noise = 1.0 + numbers.below(1000) as f64;
                let candidate = |bits: u64| Candidate {
                    format: DType::Q4_0,
                    bytes: elements * bits / 8 + bits,
                    cost: noise / f64::from(1u32 << (2 * bits)),
                };
                pareto([3, 4, 5, 6, 8].into_iter().map(candidate).collect())
            })
            .collect();
        let smallest = bytes(&groups, &vec![0; groups.len()]);
        for budget in [smallest, smallest * 5 / 4, smallest * 3 / 2, smallest * 2, smallest * 4] {
            let chosen = choose(&groups, budget).unwrap();
            let (cost, bound) = (cost(&groups, &chosen), bound(&groups, budget).unwrap());
            assert!(bytes(&groups, &chosen) <= budget);
            assert!(cost <= bound * 1.005, "{cost} {bound}");
        }
        assert!(choose(&groups, smallest - 1).is_none());
    }
}

#[test]
fn idle_candidates() {
    let candidate = |bytes, cost| Candidate { format: DType::Q4_0, bytes, cost };
    let check = |given: &[(u64, f64)], expected: &[(u64, f64)]| {
        let kept = pareto(given.iter().map(|(bytes, cost)| candidate(*bytes, *cost)).collect());
        assert_eq!(kept, expected.iter().map(|(bytes, cost)| candidate(*bytes, *cost)).collect::<Vec<_>>());
    };
    check(&[(4, 1.0), (2, 3.0), (3, 3.0), (5, 2.0), (6, 0.0)], &[(2, 3.0), (4, 1.0), (6, 0.0)]);
    check(&[(2, 0.0), (2, 1.0)], &[(2, 0.0)]);
    check(&[], &[]);
}

/// A model of `layers` layers, all matrices stored as `dtype`.
fn checkpoint(layers: usize, tied: bool, dtype: DType) -> Checkpoint {
    model_of([layers, 64, 96], tied, dtype)
}

/// What a target takes: the formats of a matrix of 64 inputs, of the down projection with 96, and of the table.
#[test]
fn formats_of_targets() {
    let check = |target: &str, tied: bool, act: Activation, dtype: DType, expected: [&str; 3]| {
        let checkpoint = checkpoint(1, tied, dtype);
        let matrices = matrices(&checkpoint, &target::find(target).unwrap(), act, None).unwrap();
        for (name, expected) in
            ["layers.0.self_attn.q_proj.weight", "layers.0.mlp.down_proj.weight", llama::EMBEDDING].iter().zip(expected)
        {
            let matrix = matrices.iter().find(|matrix| matrix.name == *name).unwrap();
            assert_eq!(names(&matrix.formats), expected, "{target} {name}");
        }
    };
    let all =
        "f32, f16, bf16, q4_0, q4_1, q8_0, int8, int4, lpbq4-g16, lpbq4-g32, lpbq4-g64, bw4-g16, bw4-g32, bw4-g64";
    let mali = "f32, f16, bf16, q4_0, q8_0";
    let of_96 = all.replace(", lpbq4-g64", "").replace(", bw4-g64", "");
    check("host", true, Activation::Float, DType::F32, [all, &of_96, all]);
    // What is stored may stay, where the target takes it.
    let stored = all.replace("q4_1, ", "q4_1, q5_0, ");
    check(
        "host",
        true,
        Activation::Float,
        DType::Q5_0,
        [&stored, &stored.replace(", lpbq4-g64", "").replace(", bw4-g64", ""), &stored],
    );
    check("mali-valhall", true, Activation::Float, DType::Q5_0, [mali, mali, mali]);
    // A table that is no head is looked up by the runner.
    check("mali-valhall", false, Activation::Float, DType::F32, [mali, mali, all]);
    check("genio-720", true, Activation::Float, DType::F32, ["f16", "f16", "f16"]);
    check("genio-720", true, Activation::S16, DType::F32, ["int8, int4", "int8, int4", "int8, int4"]);
}

#[test]
fn formats_that_are_named() {
    let checkpoint = checkpoint(1, true, DType::F32);
    let of =
        |target: &str, act, among: &[DType]| matrices(&checkpoint, &target::find(target).unwrap(), act, Some(among));
    let found = of("host", Activation::Float, &[DType::Q8_0, DType::Q4_0]).unwrap();
    assert!(found.iter().all(|matrix| matrix.formats == [DType::Q4_0, DType::Q8_0]));
    for (target, act, among, code) in [
        ("mali-valhall", Activation::Float, DType::Q4_1, Code::UnsupportedFormat),
        ("mali-valhall", Activation::S16, DType::Q4_0, Code::UnsupportedFormat),
        ("genio-720", Activation::U16, DType::Int8, Code::UnsupportedFormat),
    ] {
        let error = of(target, act, &[among]).unwrap_err();
        assert_eq!(error.diagnostics()[0].code, code, "{target} {error}");
    }
}

#[test]
fn activations_of_targets() {
    let whole = |float: bool| {
        let mut text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../targets/genio-720.toml")).unwrap();
        text = text
            .replace("activation = \"f16\"", "activation = \"int8\"")
            .replace("name = \"genio-720\"", "name = \"mine\"");
        if !float {
            text = text.replace("activation = \"int16\"", "activation = \"int8\"");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        std::fs::write(&path, text).unwrap();
        activation(&target::find(path.to_str().unwrap()).unwrap())
    };
    for (target, expected) in
        [("host", Activation::Float), ("mali-valhall", Activation::Float), ("sm8650", Activation::Float)]
    {
        assert_eq!(activation(&target::find(target).unwrap()).unwrap(), expected, "{target}");
    }
    assert_eq!(whole(true).unwrap(), Activation::Int16);
    assert_eq!(whole(false).unwrap_err().diagnostics()[0].code, Code::UnsupportedFormat);
}

/// A recipe read from its file gives every matrix the format that it was made from, and has as many lines as it may.
fn check_recipe(tied: bool, stored: DType, of: impl Fn(&Matrix) -> DType, most_lines: usize) {
    let checkpoint = checkpoint(4, tied, stored);
    let target = target::host();
    let matrices = matrices(&checkpoint, &target, Activation::Float, None).unwrap();
    let formats: Vec<(&Matrix, DType)> = matrices.iter().map(|matrix| (matrix, of(matrix))).collect();
    let made = recipe("made", Activation::Float, &formats);
    let toml = made.to_toml();
    let read = Recipe::parse("made", &toml).unwrap();
    assert_eq!(read, made, "{toml}");
    let folds = Folds::none(&checkpoint.config);
    let plan = Plan::new(&checkpoint, &folds, &read, &Destination::Target(target), true).unwrap();
    for (matrix, format) in &formats {
        assert_eq!(plan.find(&matrix.name).unwrap().to, *format, "{} of\n{toml}", matrix.name);
    }
    assert_eq!(plan.weights.iter().filter(|weight| weight.shape.len() > 1).count(), matrices.len(), "{toml}");
    // `act`, `kv`, `residual`, and a line for projections, head and table.
    assert!(toml.lines().count() <= 6 + most_lines, "{toml}");
}

#[test]
fn recipes_say_what_was_chosen() {
    for tied in [false, true] {
        check_recipe(tied, DType::F32, |_| DType::Q4_0, 0);
        check_recipe(
            tied,
            DType::F32,
            |matrix| if matrix.role == Role::Embedding { DType::Q8_0 } else { DType::Q4_0 },
            0,
        );
        let down = |matrix: &Matrix| matrix.place().1 == "mlp.down_proj";
        check_recipe(tied, DType::F32, |matrix| if down(matrix) { DType::Q8_0 } else { DType::Q4_0 }, 1);
        check_recipe(tied, DType::F32, |matrix| if matrix.place().0 == Some(2) { DType::Q8_0 } else { DType::Q4_0 }, 1);
        let both = |matrix: &Matrix| match matrix.place() {
            (Some(1), "self_attn.q_proj") => DType::Int4,
            (Some(1), _) => DType::Q8_0,
            (_, "mlp.down_proj") => DType::Q4_1,
            (_, _) => DType::Q4_0,
        };
        check_recipe(tied, DType::F32, both, 3);
        // K-quants and the like are not written: they are what is stored, and have no name in a recipe.
        check_recipe(tied, DType::Q5_0, |matrix| if down(matrix) { DType::Q5_0 } else { DType::Q4_0 }, 1);
    }
    let mut numbers = Numbers(3);
    for _ in 0..50 {
        let some: Vec<DType> =
            (0..30).map(|_| [DType::Q4_0, DType::Q8_0, DType::F16][numbers.below(3) as usize]).collect();
        let place = std::cell::Cell::new(0);
        let next = |_: &Matrix| {
            place.set(place.get() + 1);
            some[place.get() - 1]
        };
        check_recipe(false, DType::F32, next, 28);
    }
}
