//! Writes the golden hashes with the naive reference, or with `--check` compares them.

use std::process::ExitCode;

use sgemm_bi_tests::{Reference, golden};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => write(),
        ["--check"] => check(),
        _ => Err("usage: make-goldens [--check]".into()),
    };
    match result {
        Ok(message) => {
            println!("{message}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("make-goldens: {message}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<String, String> {
    for tier in golden::TIERS {
        let file = golden::file(tier);
        let text = golden::write(tier, &Reference);
        std::fs::write(&file, &text).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(format!("wrote {} hashes", count()))
}

fn check() -> Result<String, String> {
    for tier in golden::TIERS {
        let file = golden::file(tier);
        let text = std::fs::read_to_string(&file)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        golden::check_keys(tier, &golden::parse(tier, &text)?)?;
        let computed = golden::write(tier, &Reference);
        for (held, computed) in text.lines().zip(computed.lines()) {
            if held != computed {
                return Err(format!(
                    "{} holds\n{held}\nand the reference computes\n{computed}",
                    file.display()
                ));
            }
        }
        if text != computed {
            return Err(format!(
                "{}: not as long as what is computed",
                file.display()
            ));
        }
    }
    Ok(format!("{} hashes are those of the reference", count()))
}

fn count() -> usize {
    golden::TIERS
        .map(|tier| golden::Case::all(tier).len())
        .iter()
        .sum()
}
