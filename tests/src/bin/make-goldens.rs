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
    let file = golden::scalar_file();
    let text = golden::write_scalar(&Reference);
    std::fs::write(&file, &text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(format!(
        "wrote {} hashes to {}",
        golden::Case::all().len(),
        file.display()
    ))
}

fn check() -> Result<String, String> {
    let file = golden::scalar_file();
    let text =
        std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    golden::check_keys(&golden::parse(&text)?)?;
    let computed = golden::write_scalar(&Reference);
    for (held, computed) in text.lines().zip(computed.lines()) {
        if held != computed {
            return Err(format!(
                "the file holds\n{held}\nand the reference computes\n{computed}"
            ));
        }
    }
    if text != computed {
        return Err("the file and what the reference computes differ in length".into());
    }
    Ok(format!(
        "{} hashes are those of the reference",
        golden::Case::all().len()
    ))
}
