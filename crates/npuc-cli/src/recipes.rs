//! `npuc recipes`: the formats that models can be quantised to, with bits and the targets that take them.

use npuc::Result;
use npuc::quant::recipe::{Activation, Recipe, names};
use npuc::target::{self, Target, WeightFormat};
use serde::Serialize;

use crate::args::RecipesArgs;
use crate::output::Output;

#[derive(Serialize)]
struct Row {
    name: String,
    /// Bits of a weight of a projection with 2048 inputs, scales included; absent where they stay as stored.
    bits_per_weight: Option<f64>,
    activations: &'static str,
    targets: Vec<String>,
}

/// The inputs of the projection that bits are told for: scales of rows count little there.
const COLS: usize = 2048;

/// Runs the command.
pub(crate) fn command(args: &RecipesArgs, output: Output) -> Result<()> {
    if let Some(name) = &args.name {
        let recipe = Recipe::find(name)?;
        let toml = recipe.to_toml();
        return output.result(&serde_json::json!({ "name": recipe.name, "toml": toml }), &toml);
    }
    let rows: Vec<Row> =
        names().iter().map(|name| Recipe::named(name).map(|recipe| row(&recipe))).collect::<Result<_>>()?;
    let line = |row: &Row| {
        let bits = row.bits_per_weight.map_or("-".to_owned(), |bits| format!("{bits:.2}"));
        format!("{:<20}{:>6}  {:<7}{}\n", row.name, bits, row.activations, row.targets.join(" "))
    };
    let head = format!("{:<20}{:>6}  {:<7}{}\n", "recipe", "bits", "act", "targets");
    output.result(&rows, &(head + &rows.iter().map(line).collect::<String>()))
}

fn row(recipe: &Recipe) -> Row {
    let format = recipe.head_format();
    let bits = format.and_then(|dtype| dtype.row_bytes(COLS)).map(|bytes| 8.0 * bytes as f64 / COLS as f64);
    let takes = |target: &&Target| {
        // Chips may take 8-bit activations; no back end emits them.
        if recipe.activation == Activation::U8 && !target.is_host() {
            return false;
        }
        let activation = recipe.activation.number(target.float);
        let of_target = target.formats.iter().filter(|row| row.activation == activation || target.is_host());
        format.is_none_or(|dtype| of_target.clone().any(|row| row.takes(WeightFormat::stored(dtype))))
    };
    Row {
        name: recipe.name.clone(),
        bits_per_weight: bits,
        activations: recipe.activation.name(),
        targets: target::all().iter().filter(takes).map(|target| target.name.clone()).collect(),
    }
}
