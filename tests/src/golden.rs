//! The golden cases: which results are pinned, from what data, and the files of hashes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sgemm_bi_core::contract::CONTRACT_VERSION;
use sgemm_bi_core::{Dtype, Shape, TensorCoreModel, Tier, WeightLayout};

use crate::place::Place;
use crate::prepared::Prepared;
use crate::{Buffer, Data, Engine};

/// An operation that goldens pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it, and `name` is what the files hold
pub enum GoldenOp {
    Forward,
    ForwardBias,
    ForwardBiasF32,
    ForwardOutF32,
    InputGradient,
    WeightGradient,
    WeightGradientAccumulate,
    BiasGradient,
    BiasGradientAccumulate,
    MatmulBatched,
}

impl GoldenOp {
    const ALL: [GoldenOp; 10] = [
        GoldenOp::Forward,
        GoldenOp::ForwardBias,
        GoldenOp::ForwardBiasF32,
        GoldenOp::ForwardOutF32,
        GoldenOp::InputGradient,
        GoldenOp::WeightGradient,
        GoldenOp::WeightGradientAccumulate,
        GoldenOp::BiasGradient,
        GoldenOp::BiasGradientAccumulate,
        GoldenOp::MatmulBatched,
    ];

    /// The name in golden files.
    pub fn name(self) -> &'static str {
        match self {
            GoldenOp::Forward => "forward",
            GoldenOp::ForwardBias => "forward-bias",
            GoldenOp::ForwardBiasF32 => "forward-bias-f32",
            GoldenOp::ForwardOutF32 => "forward-out-f32",
            GoldenOp::InputGradient => "input-gradient",
            GoldenOp::WeightGradient => "weight-gradient",
            GoldenOp::WeightGradientAccumulate => "weight-gradient-accumulate",
            GoldenOp::BiasGradient => "bias-gradient",
            GoldenOp::BiasGradientAccumulate => "bias-gradient-accumulate",
            GoldenOp::MatmulBatched => "matmul-batched",
        }
    }

    /// Whether this op is another one when the operands are f32.
    fn is_for_16_bits(self) -> bool {
        matches!(self, GoldenOp::ForwardBiasF32 | GoldenOp::ForwardOutF32)
    }

    fn is_bias_gradient(self) -> bool {
        matches!(
            self,
            GoldenOp::BiasGradient | GoldenOp::BiasGradientAccumulate
        )
    }
}

/// Where the operands of a golden case lie. All layouts share its one hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Dense, the weight (or its gradient) as `[in, out]`.
    InOut,
    /// Dense, the weight (or its gradient) as `[out, in]`.
    OutIn,
    /// Gaps between columns of the first operand, rows of the output and all elements of the
    /// second operand.
    Strided,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Layout; 3] = [Layout::InOut, Layout::OutIn, Layout::Strided];

    /// The weight's layout where both operands are dense.
    pub fn weight(self) -> WeightLayout {
        match self {
            Layout::OutIn => WeightLayout::OutIn,
            Layout::InOut | Layout::Strided => WeightLayout::InOut,
        }
    }

    /// Places of the first operand, the second one and the output of a general product.
    pub fn places(self) -> [Place; 3] {
        match self {
            Layout::InOut => [Place::RowMajor; 3],
            Layout::OutIn => [Place::RowMajor, Place::ColMajor, Place::RowMajor],
            Layout::Strided => [Place::PaddedCols, Place::Scattered, Place::PaddedRows],
        }
    }
}

/// (M, K, N) that every op and dtype is pinned at, with ordinary data.
const SHAPES: [(usize, usize, usize); 26] = [
    (1, 1, 1),
    (1, 0, 3),
    (3, 1, 5),
    (2, 3, 0),
    (0, 4, 2),
    (1, 33, 17),
    (2, 7, 3),
    (5, 64, 16),
    (17, 31, 33),
    (65, 48, 97),
    (64, 64, 64),
    (129, 24, 193),
    (70, 600, 66),
    (66, 4099, 70),
    (1, 300, 257),
    (16, 513, 31),
    (7, 1023, 5),
    (33, 5, 1025),
    (3, 4095, 5),
    (3, 4096, 5),
    (2, 4097, 19),
    (2, 9001, 7),
    (4095, 3, 5),
    (4096, 5, 2),
    (4097, 2, 19),
    (9001, 7, 2),
];

/// (M, K, N) that are also pinned with wide and tiny data.
const SHAPES_OF_HARD_DATA: [(usize, usize, usize); 4] =
    [(1, 33, 17), (19, 40, 23), (3, 4099, 2), (4099, 3, 2)];

/// (M, K, N) that are also pinned with special data: short, so that not every result is NaN.
const SHAPES_OF_SPECIAL_DATA: [(usize, usize, usize); 4] =
    [(1, 33, 17), (19, 40, 23), (40, 12, 9), (5, 2, 70)];

/// Every tier that goldens pin, each in a file of its own.
pub const TIERS: [Tier; 3] = [
    Tier::Scalar,
    Tier::TensorCore(TensorCoreModel::Ampere),
    Tier::TensorCore(TensorCoreModel::Hopper),
];

/// One pinned result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The tier: the file that the case is in.
    pub tier: Tier,
    /// The operation.
    pub op: GoldenOp,
    /// The operands' dtype.
    pub dtype: Dtype,
    /// The sizes; `k` is 0 in a bias gradient.
    pub shape: Shape,
    /// The kind of data.
    pub data: Data,
}

impl Case {
    /// Every case of a tier. (Bias gradients are the same in all, and in the scalar one's file.)
    pub fn all(tier: Tier) -> Vec<Case> {
        let scalar = tier == Tier::Scalar;
        let mut cases = Vec::new();
        for op in GoldenOp::ALL {
            for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
                if (op.is_for_16_bits() || !scalar) && dtype == Dtype::F32
                    || op.is_bias_gradient() && !scalar
                {
                    continue;
                }
                let ordinary = SHAPES.map(|shape| (shape, Data::Normal));
                let hard = SHAPES_OF_HARD_DATA
                    .into_iter()
                    .flat_map(|shape| [(shape, Data::Wide), (shape, Data::Tiny)]);
                let special = SHAPES_OF_SPECIAL_DATA.map(|shape| (shape, Data::Special));
                for ((m, k, n), data) in ordinary.into_iter().chain(hard).chain(special) {
                    let k = if op.is_bias_gradient() { 0 } else { k };
                    let shape = Shape { m, k, n };
                    let case = Case {
                        tier,
                        op,
                        dtype,
                        shape,
                        data,
                    };
                    if !cases.contains(&case) {
                        cases.push(case);
                    }
                }
            }
        }
        cases
    }

    /// The case's line in the golden file, without the hash.
    pub fn key(&self) -> String {
        let Shape { m, k, n } = self.shape;
        let (op, data) = (self.op.name(), self.data.name());
        format!("{op} {} {m} {k} {n} {data}", self.dtype)
    }

    /// Multiply-adds, about.
    pub fn work(&self) -> usize {
        let Shape { m, k, n } = self.shape;
        m * k.max(1) * n
    }

    /// The seed of an operand: the first eight bytes, little-endian, of the BLAKE3 hash of the
    /// key, a space and the operand's name.
    fn seed(&self, operand: &str) -> u64 {
        let digest = blake3::hash(format!("{} {operand}", self.key()).as_bytes());
        let bytes = digest
            .as_bytes()
            .first_chunk::<8>()
            .expect("a digest has 32 bytes");
        u64::from_le_bytes(*bytes)
    }

    /// Elements of an operand.
    pub fn fill(&self, operand: &str, dtype: Dtype, len: usize) -> Buffer {
        self.data.fill(dtype, len, self.seed(operand))
    }

    /// Computes the case and hashes the output.
    pub fn run(&self, engine: &dyn Engine, layout: Layout) -> String {
        Prepared::new(self, layout).run(engine)
    }
}

/// Names the folder of the files, where it is not the one in the source tree: tests may run on
/// another machine than the one that built them.
pub const FOLDER_VARIABLE: &str = "SGEMM_BI_GOLDENS";

/// The file of a tier's hashes.
pub fn file(tier: Tier) -> PathBuf {
    let name = match tier {
        Tier::TensorCore(model) => format!("tensor-core-{model}").to_lowercase(),
        _ => tier.to_string(),
    };
    let goldens = match std::env::var_os(FOLDER_VARIABLE) {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens"),
    };
    goldens.join(name + ".txt")
}

/// The text of a tier's file, computed by an engine.
pub fn write(tier: Tier, engine: &dyn Engine) -> String {
    let line = |case: &Case| format!("{} {}\n", case.key(), case.run(engine, Layout::InOut));
    let mut lines: Vec<_> = Case::all(tier).iter().map(line).collect();
    lines.sort();
    header(tier) + &lines.concat()
}

fn header(tier: Tier) -> String {
    format!(
        "# contract version {CONTRACT_VERSION}, tier {tier}\n\
         # made by the naive reference: cargo run -p sgemm-bi-tests --bin make-goldens\n\
         # op dtype m k n data hash\n"
    )
}

/// Hashes by key. An error says what is wrong with the file.
pub fn parse(tier: Tier, text: &str) -> Result<BTreeMap<String, String>, String> {
    let header = header(tier);
    let Some(body) = text.strip_prefix(&header) else {
        return Err(format!("the file does not begin with\n{header}"));
    };
    let mut hashes = BTreeMap::new();
    for line in body.lines() {
        let (key, hash) = line
            .rsplit_once(' ')
            .ok_or_else(|| format!("no hash in {line:?}"))?;
        if hashes.insert(key.to_owned(), hash.to_owned()).is_some() {
            return Err(format!("two lines for {key:?}"));
        }
    }
    Ok(hashes)
}

/// Checks that the file of a tier holds each case once and nothing else.
pub fn check_keys(tier: Tier, hashes: &BTreeMap<String, String>) -> Result<(), String> {
    let keys: Vec<_> = Case::all(tier).iter().map(Case::key).collect();
    if let Some(missing) = keys.iter().find(|key| !hashes.contains_key(*key)) {
        return Err(format!("no golden for {missing:?}"));
    }
    if let Some(superfluous) = hashes.keys().find(|key| !keys.contains(key)) {
        return Err(format!("no case for the golden {superfluous:?}"));
    }
    Ok(())
}
