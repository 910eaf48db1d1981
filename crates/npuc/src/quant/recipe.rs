//! Recipes: which format every weight gets, and what activations and caches are, as a name or a TOML file.
//!
//! The lines of a recipe are rules, and the last one that holds for a weight gives its format.

use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::diag::{Code, Diagnostic, Error, Result};
use crate::front::ModelConfig;
use crate::model::{Role, WeightSpec};
use crate::place::rule;
use crate::target::Number;
use crate::tensor::DType;

/// What a model is quantised to.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The name, or that of the file.
    pub name: String,
    /// The formats of weights, the last rule that holds first asked.
    pub weights: Vec<WeightRule>,
    /// What activations are.
    pub activation: Activation,
    /// What caches are.
    pub kv: Kv,
    /// What the residual stream is where activations are whole numbers.
    pub residual: Residual,
}

/// A format for the weights that a condition holds for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightRule {
    /// Which weights.
    pub condition: Condition,
    /// Their format; `None` keeps them as they are stored.
    pub format: Option<DType>,
}

/// Which weights a rule is about. Gains, biases and filters are in no rule: they stay floats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Every projection inside the layers.
    Linear,
    /// The weights of a role.
    Role(Role),
    /// Those whose name, without the final `.weight`, matches; `*` stands for any characters, `?` for one.
    Name(String),
}

/// What activations are in a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The target's own float format.
    Float,
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The target's own whole numbers of 16 bits.
    Int16,
    /// 16 bits with a zero point (Qualcomm).
    U16,
    /// 16 bits around zero (MediaTek).
    S16,
    /// 8 bits with a zero point.
    U8,
}

/// What the residual stream and the norms between are in a recipe. The first token of real models has numbers of ten
/// thousands there, beside which a step of 16 bits is as large as the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// IEEE half.
    F16,
    /// As activations are.
    Same,
}

impl Residual {
    const ALL: [(&'static str, Residual); 2] = [("f16", Residual::F16), ("act", Residual::Same)];

    /// The name in recipes.
    pub fn name(self) -> &'static str {
        name_of(&Residual::ALL, self)
    }
}

/// What caches of keys and values are in a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kv {
    /// As activations are.
    Same,
    /// 8 bits with a zero point.
    U8,
    /// 16 bits with a zero point.
    U16,
    /// IEEE half.
    F16,
}

impl Activation {
    const ALL: [(&'static str, Activation); 7] = [
        ("float", Activation::Float),
        ("f32", Activation::F32),
        ("f16", Activation::F16),
        ("int16", Activation::Int16),
        ("u16", Activation::U16),
        ("s16", Activation::S16),
        ("u8", Activation::U8),
    ];

    /// The name in recipes.
    pub fn name(self) -> &'static str {
        name_of(&Activation::ALL, self)
    }

    /// The number format on a chip whose own floats are `float`.
    pub const fn number(self, float: Number) -> Number {
        match self {
            Activation::Float => float,
            Activation::F32 => Number::F32,
            Activation::F16 => Number::F16,
            Activation::Int16 | Activation::U16 | Activation::S16 => Number::Int16,
            Activation::U8 => Number::Int8,
        }
    }

    /// Whether activations are whole numbers.
    pub const fn is_whole(self) -> bool {
        match self {
            Activation::Float | Activation::F32 | Activation::F16 => false,
            Activation::Int16 | Activation::U16 | Activation::S16 | Activation::U8 => true,
        }
    }
}

impl Kv {
    const ALL: [(&'static str, Kv); 4] = [("act", Kv::Same), ("u8", Kv::U8), ("u16", Kv::U16), ("f16", Kv::F16)];

    /// The name in recipes.
    pub fn name(self) -> &'static str {
        name_of(&Kv::ALL, self)
    }
}

fn name_of<T: Copy + PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| name)
}

/// A recipe with a name: the format of projections and head, that of the embedding table, and activations.
struct Named {
    name: &'static str,
    matrices: Option<DType>,
    table: Option<DType>,
    activation: Activation,
    kv: Kv,
}

/// The recipes with a fixed name; those of groups are made from their names.
const NAMED: [Named; 11] = {
    const fn weights(name: &'static str, dtype: DType) -> Named {
        Named { name, matrices: Some(dtype), table: Some(dtype), activation: Activation::Float, kv: Kv::Same }
    }
    const fn whole(name: &'static str, dtype: DType) -> Named {
        Named { name, matrices: Some(dtype), table: None, activation: Activation::Int16, kv: Kv::Same }
    }
    [
        Named { name: "stored", matrices: None, table: None, activation: Activation::Float, kv: Kv::Same },
        weights("f32", DType::F32),
        weights("f16", DType::F16),
        weights("bf16", DType::BF16),
        weights("q8_0", DType::Q8_0),
        weights("q4_1", DType::Q4_1),
        weights("q4_0", DType::Q4_0),
        Named { name: "w8", matrices: Some(DType::Int8), table: None, activation: Activation::Float, kv: Kv::Same },
        whole("w8a16", DType::Int8),
        whole("w4a16", DType::Int4),
        Named { activation: Activation::U8, ..whole("w8a8", DType::Int8) },
    ]
};

/// The names of the recipes that come with npuc, in the order of a listing.
pub fn names() -> Vec<String> {
    let fixed = NAMED.iter().map(|named| named.name.to_owned());
    let grouped = DType::ALL.into_iter().filter_map(|dtype| match dtype {
        DType::Lpbq4(_) => Some(format!("w4a16-{dtype}").replace("lpbq4", "lpbq")),
        DType::Bw4(_) => Some(format!("f16-{dtype}")),
        DType::F32 | DType::F16 | DType::BF16 | DType::Int8 | DType::Int4 => None,
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => None,
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => None,
    });
    fixed.chain(grouped).collect()
}

impl Recipe {
    /// The recipe of a name, or that of a file that ends in `.toml`.
    ///
    /// Errors: [`Code::BadRecipe`] with the names that there are, or what is wrong in the file; [`Code::Unreadable`].
    pub fn find(text: &str) -> Result<Recipe> {
        let path = Path::new(text);
        if path.extension().is_none_or(|ending| ending != "toml") {
            return Recipe::named(text);
        }
        let content = std::fs::read_to_string(path)
            .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the recipe: {e}")).file(path))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Recipe::parse(&name, &content).map_err(|e| e.in_file(path))
    }

    /// The recipe of that name: one of [`names`].
    ///
    /// Errors: [`Code::BadRecipe`].
    pub fn named(name: &str) -> Result<Recipe> {
        let fixed = NAMED.iter().find(|named| named.name == name);
        if let Some(named) = fixed {
            return Ok(named.recipe(name));
        }
        let of_groups =
            [("w4a16-lpbq-", "lpbq4-", Activation::Int16, Kv::Same), ("f16-bw4-", "bw4-", Activation::F16, Kv::Same)];
        let grouped = of_groups.into_iter().find_map(|(prefix, format, activation, kv)| {
            let dtype = DType::from_name(&format!("{format}{}", name.strip_prefix(prefix)?))?;
            Some(Named { name: "", matrices: Some(dtype), table: None, activation, kv }.recipe(name))
        });
        grouped.ok_or_else(|| {
            Diagnostic::error(Code::BadRecipe, "npuc does not know this recipe")
                .need(names().join(", "))
                .have(name)
                .help("see `npuc recipes`, or name a file that ends in .toml")
                .into()
        })
    }

    /// The recipe that a TOML text describes: `base = "NAME"`, then one line a rule.
    ///
    /// Errors: [`Code::BadRecipe`] with the line, for text that is no TOML, and for keys and formats that npuc does not
    /// know, all at once.
    pub fn parse(name: &str, text: &str) -> Result<Recipe> {
        let fault = |message: String| Diagnostic::error(Code::BadRecipe, message);
        let Lines(lines) = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            fault(format!("the recipe does not parse: {}", e.message())).line(line)
        })?;
        let base = lines.iter().find(|(key, _)| key == "base").map_or("stored", |(_, value)| value.as_str());
        let mut recipe = Recipe { name: name.to_owned(), ..Recipe::named(base)? };
        let mut faults = Vec::new();
        for (key, value) in lines.iter().filter(|(key, _)| key != "base") {
            if let Err(error) = recipe.apply(key, value) {
                faults.extend_from_slice(error.diagnostics());
            }
        }
        Error::check(faults)?;
        Ok(recipe)
    }

    /// Adds one line.
    fn apply(&mut self, key: &str, value: &str) -> Result<()> {
        let unknown = |what: &str, need: String| {
            let fault = Diagnostic::error(Code::BadRecipe, format!("a recipe has an unknown {what}")).subject(key);
            Error::from(fault.need(need).have(value))
        };
        match key {
            "act" => {
                self.activation =
                    among(&Activation::ALL, value).ok_or_else(|| unknown("activation", list(&Activation::ALL)))?
            }
            "kv" => self.kv = among(&Kv::ALL, value).ok_or_else(|| unknown("cache format", list(&Kv::ALL)))?,
            "residual" => {
                self.residual =
                    among(&Residual::ALL, value).ok_or_else(|| unknown("residual format", list(&Residual::ALL)))?;
            }
            _ => {
                let format = format(value).ok_or_else(|| unknown("weight format", format_names().join(", ")))?;
                let condition = condition(key);
                // This line holds wherever an earlier one of the same weights does.
                self.weights.retain(|rule| rule.condition != condition);
                self.weights.push(WeightRule { condition, format });
            }
        }
        Ok(())
    }

    /// The format that the rules give a weight; `None` where it stays as it is stored. The table of a tied head is both:
    /// see [`Recipe::head_format`].
    pub fn format(&self, spec: &WeightSpec) -> Option<DType> {
        let matrix = spec.role.is_matrix();
        let rule = self.weights.iter().rev().find(|rule| matrix && rule.condition.holds(&spec.name, spec.role));
        rule.and_then(|rule| rule.format)
    }

    /// The format that the rules give the head.
    pub fn head_format(&self) -> Option<DType> {
        let head = |rule: &&WeightRule| rule.condition.holds(crate::model::llama::HEAD, Role::Head);
        self.weights.iter().rev().find(head).and_then(|rule| rule.format)
    }

    /// The recipe as a TOML file, one rule a line.
    pub fn to_toml(&self) -> String {
        let format = |rule: &WeightRule| rule.format.map_or("stored", DType::name);
        let rules = self.weights.iter().map(|rule| format!("{} = \"{}\"\n", rule.condition.key(), format(rule)));
        let rules: String = rules.collect();
        let (activation, kv, residual) = (self.activation.name(), self.kv.name(), self.residual.name());
        format!("act = \"{activation}\"\nkv = \"{kv}\"\nresidual = \"{residual}\"\n{rules}")
    }

    /// Name patterns that match no weight of the model.
    ///
    /// Errors: [`Code::BadRecipe`] for each.
    pub fn check_names(&self, config: &ModelConfig) -> Result<()> {
        let mut matrices = crate::model::weight_specs(config);
        matrices.retain(|spec| spec.role.is_matrix());
        let idle = |rule: &&WeightRule| match &rule.condition {
            Condition::Name(pattern) => {
                !matrices.iter().any(|spec| rule.condition.holds(&spec.name, spec.role)) && pattern != "lm_head"
            }
            Condition::Linear | Condition::Role(_) => false,
        };
        let fault = |rule: &WeightRule| {
            Diagnostic::error(Code::BadRecipe, "a line of the recipe is about no matrix of the model")
                .subject(rule.condition.key())
                .help("`npuc inspect --json MODEL` lists the weights; gains, biases and filters stay floats")
        };
        Error::check(self.weights.iter().filter(idle).map(fault).collect())
    }
}

impl Named {
    fn recipe(&self, name: &str) -> Recipe {
        let rule = |condition, format| WeightRule { condition, format };
        let weights = vec![
            rule(Condition::Linear, self.matrices),
            rule(Condition::Role(Role::Head), self.matrices),
            rule(Condition::Role(Role::Embedding), self.table),
        ];
        Recipe { name: name.to_owned(), weights, activation: self.activation, kv: self.kv, residual: Residual::F16 }
    }
}

impl Condition {
    /// Whether a rule is about the weight of this name and role.
    fn holds(&self, name: &str, role: Role) -> bool {
        match self {
            Condition::Linear => role.is_projection(),
            Condition::Role(of) => *of == role,
            Condition::Name(pattern) => rule::matches(pattern, name.strip_suffix(".weight").unwrap_or(name)),
        }
    }

    /// The key in a recipe's file.
    fn key(&self) -> String {
        match self {
            Condition::Linear => "linear".into(),
            Condition::Role(role) => role.name().into(),
            Condition::Name(pattern) => format!("\"{pattern}\""),
        }
    }
}

fn condition(key: &str) -> Condition {
    let roles = [Role::Embedding, Role::Attention, Role::FeedForward, Role::Convolution, Role::Head];
    match roles.into_iter().find(|role| role.name() == key) {
        Some(role) => Condition::Role(role),
        None if key == "linear" => Condition::Linear,
        None => Condition::Name(key.strip_suffix(".weight").unwrap_or(key).to_owned()),
    }
}

/// The format of a name; `Some(None)` for `stored`.
#[expect(clippy::option_option, reason = "no format, the stored one, or another")]
fn format(name: &str) -> Option<Option<DType>> {
    if name == "stored" {
        return Some(None);
    }
    DType::from_name(name).filter(|dtype| npuc_kernels::quantize::writable(*dtype)).map(Some)
}

fn format_names() -> Vec<&'static str> {
    let writable = DType::ALL.into_iter().filter(|dtype| npuc_kernels::quantize::writable(*dtype));
    ["stored"].into_iter().chain(writable.map(DType::name)).collect()
}

fn among<T: Copy>(names: &[(&'static str, T)], name: &str) -> Option<T> {
    names.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

fn list<T>(names: &[(&'static str, T)]) -> String {
    names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// The lines of a recipe in their order.
struct Lines(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Lines, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Lines;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("lines of the form key = \"format\"")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Lines, A::Error> {
                let mut lines = Vec::new();
                while let Some(line) = map.next_entry()? {
                    lines.push(line);
                }
                Ok(Lines(lines))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
#[path = "recipe_tests.rs"]
mod tests;
