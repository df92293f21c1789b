//! Checks the block function T against published outputs of real tensor cores.
//!
//! Runs when `SGEMM_BI_TC_VECTORS` names a folder that holds files `GPU_dtype.txt`, one vector a
//! line, `a words | b words | c | d`, each word the hex of a binary32 (those of a and b exactly
//! representable in the operand type), comments after `#`.

use std::collections::HashMap;
use std::path::Path;

use sgemm_bi_core::TensorCoreModel::{self, Ampere, Hopper};
use sgemm_bi_core::contract::BlockParameters;
use sgemm_bi_core::tensor_core::{Format, Number, block};

/// An operand type: its format, its number of bits, and the parameters that a model has for it.
struct OperandType {
    name: &'static str,
    format: Format,
    bits: u32,
    parameters: fn(TensorCoreModel) -> BlockParameters,
}

const OPERAND_TYPES: [OperandType; 4] = [
    OperandType {
        name: "bf16",
        format: Format::BF16,
        bits: 16,
        parameters: TensorCoreModel::half_precision,
    },
    OperandType {
        name: "f16",
        format: Format::F16,
        bits: 16,
        parameters: TensorCoreModel::half_precision,
    },
    OperandType {
        name: "e4m3",
        format: Format::E4M3,
        bits: 8,
        parameters: TensorCoreModel::eight_bit,
    },
    OperandType {
        name: "e5m2",
        format: Format::E5M2,
        bits: 8,
        parameters: TensorCoreModel::eight_bit,
    },
];

const FILES: [(&str, TensorCoreModel, &[&str]); 4] = [
    ("A100", Ampere, &["bf16", "f16"]),
    ("Ada", Ampere, &["bf16", "f16", "e4m3", "e5m2"]),
    ("H100", Hopper, &["bf16", "f16", "e4m3", "e5m2"]),
    ("B200", Hopper, &["bf16", "f16"]),
];

#[test]
fn published_vectors() {
    let Some(folder) = std::env::var_os("SGEMM_BI_TC_VECTORS") else {
        println!("skipped: SGEMM_BI_TC_VECTORS does not name a folder of tensor-core vectors");
        return;
    };
    for (gpu, model, names) in FILES {
        for operands in OPERAND_TYPES.iter().filter(|o| names.contains(&o.name)) {
            let file = format!("{gpu}_{}.txt", operands.name);
            let count = check_file(&Path::new(&folder).join(&file), operands, model);
            println!("{file}: {count} vectors, 0 mismatches ({model} parameters)");
        }
    }
}

/// Checks every vector of a file, and returns how many there were.
fn check_file(path: &Path, operands: &OperandType, model: TensorCoreModel) -> usize {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let numbers = numbers_by_word(operands);
    let parameters = (operands.parameters)(model);
    let (mut count, mut mismatches) = (0, Vec::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        if line.trim().is_empty() {
            continue;
        }
        let fields: Vec<Vec<u32>> = line.split('|').map(words).collect();
        let [a, b, c, d] = &fields[..] else {
            panic!("{}:{}: expected four fields", path.display(), index + 1);
        };
        let operand = |words: &[u32]| words.iter().map(|word| numbers[word]).collect::<Vec<_>>();
        let (a, b) = (operand(a), operand(b));
        // A vector longer than a block is a chain of blocks.
        let blocks = a.chunks(parameters.length).zip(b.chunks(parameters.length));
        let got = blocks.fold(f32::from_bits(c[0]), |acc, (a, b)| {
            block(a, b, acc, parameters)
        });
        if got.to_bits() != d[0] {
            let (line, got, expected) = (index + 1, got.to_bits(), d[0]);
            mismatches.push(format!(
                "line {line}: got {got:08x}, expected {expected:08x}"
            ));
        }
        count += 1;
    }
    assert!(count > 0, "{}: no vectors", path.display());
    assert!(
        mismatches.is_empty(),
        "{}: {} of {count} mismatch:\n{}",
        path.display(),
        mismatches.len(),
        mismatches.join("\n")
    );
    count
}

/// Every value of a format, by the bits of the equal binary32.
fn numbers_by_word(operands: &OperandType) -> HashMap<u32, Number> {
    let numbers = (0..1u32 << operands.bits).map(|bits| operands.format.split(bits));
    let by_word = numbers.map(|number| {
        let value = match number {
            Number::Nan => f32::NAN,
            Number::Infinity { negative: true } => f32::NEG_INFINITY,
            Number::Infinity { negative: false } => f32::INFINITY,
            Number::Finite {
                negative,
                exponent,
                significand,
            } => {
                // In binary64 both factors and the product are exact.
                let magnitude = f64::from(significand) * 2f64.powi(exponent - 23);
                (if negative { -magnitude } else { magnitude }) as f32
            }
        };
        (value.to_bits(), number)
    });
    by_word.collect()
}

fn words(field: &str) -> Vec<u32> {
    let parse = |word| u32::from_str_radix(word, 16).unwrap_or_else(|e| panic!("{word:?}: {e}"));
    field.split_whitespace().map(parse).collect()
}
