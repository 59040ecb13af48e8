//! Describes a model from its `config.json` alone: sizes, parameters, floating-point operations.
//!
//! ```sh
//! cargo run -p ms-spec --example describe -- config.json
//! ```

use ms_spec::{Error, flops, hf, params};

/// Three lines about the model that `json` describes.
pub(crate) fn run(json: &str) -> Result<String, Error> {
    let config = hf::read_config(&hf::parse_json(json)?)?;
    let table = params(&config); // every weight: name, shape, how ranks share it out, how it is drawn
    let (count, largest) = (
        table.iter().map(|p| p.shape.numel()).sum::<usize>(),
        table.iter().max_by_key(|p| p.shape.numel()).map_or("-", |p| &p.name),
    );
    let tera = flops::head(&config, 1, config.max_positions) / 1e12;
    Ok(format!(
        "{:?}: {} layers, {} wide, {} heads over {} of keys\n{count} parameters in {} tensors, the largest {largest}\n\
         {tera:.3} TFLOP to train on one sample of {} tokens",
        config.family,
        config.layers,
        config.hidden,
        config.heads,
        config.groups,
        table.len(),
        config.max_positions
    ))
}

#[allow(dead_code, clippy::print_stdout)] // unused where a test includes this file; a program that shows
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("expected a config.json")?;
    println!("{}", run(&std::fs::read_to_string(path)?)?);
    Ok(())
}
