//! Trains a classifier of handwritten digits to the same bits on every machine.

fn main() {}
