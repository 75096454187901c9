//! Matrix products over weights as model files hold them.

use super::device::{Device, read_floats};
use super::encodings::encoded;
use super::oracle::product;
use super::values::{Random, error};
use mzcache::kernel::opencl::{
    FEW_TOKENS_MAX, Finish, MATMUL_FEW, MATMUL_MANY, MATRICES_MAX, NOWHERE, Weights, few_launch,
    few_macro, many_launch,
};

/// A multiple of 32, as tensors start, and not of more.
const OFFSET: usize = 4096 + 32;
/// Outputs of a token before and behind those of the product.
const BEFORE: usize = 3;
const BEHIND: usize = 2;
const EPSILON: f32 = 1e-5;

/// One product.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub format: Weights,
    /// Of each matrix; 0 where there is none.
    pub rows: [usize; MATRICES_MAX],
    pub columns: usize,
    pub tokens: usize,
    pub finish: Finish,
    pub has_bias: bool,
    pub has_norm: bool,
}

impl Case {
    /// One matrix and nothing else.
    pub fn new(format: Weights, rows: usize, columns: usize, tokens: usize) -> Case {
        let (finish, rows) = (Finish::Store, [rows, 0, 0]);
        Case { format, rows, columns, tokens, finish, has_bias: false, has_norm: false }
    }

    fn is_few(&self) -> bool {
        u32::try_from(self.tokens).unwrap() <= FEW_TOKENS_MAX
    }
}

/// A weight window as it is filled.
struct Unit(Vec<u8>);

impl Unit {
    /// Where the bytes start.
    fn push(&mut self, bytes: &[u8]) -> u64 {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start, 0xff);
        self.0.extend_from_slice(bytes);
        start as u64
    }

    fn push_floats(&mut self, values: &[f32]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.push(&bytes)
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// One matrix of a product.
struct Operand {
    /// Where its weights and biases are in the unit.
    weights: u64,
    bias: u64,
    rows: usize,
    /// `[token][row]`, biases included.
    sums: Vec<f64>,
}

impl Operand {
    fn new(case: &Case, rows: usize, input: &[f64], unit: &mut Unit) -> Operand {
        if rows == 0 {
            return Operand { weights: NOWHERE, bias: NOWHERE, rows, sums: vec![] };
        }
        let (tensor, values) = encoded(case.format, rows * case.columns);
        let weights = unit.push(&tensor);
        let mut sums = product(&values, input, case.columns);
        let mut bias = NOWHERE;
        if case.has_bias {
            let values = Random::new(rows as u64).normals(rows, 3.0);
            bias = unit.push_floats(&values);
            let biases = values.iter().cycle();
            sums.iter_mut().zip(biases).for_each(|(sum, bias)| *sum += f64::from(*bias));
        }
        Operand { weights, bias, rows, sums }
    }
}

/// What becomes of `[token][pitch]` values.
fn finished(case: &Case, operands: &[Operand], y: &[f32], pitch: usize) -> Vec<f64> {
    let mut want: Vec<f64> = y.iter().copied().map(f64::from).collect();
    for (token, y) in want.chunks_exact_mut(pitch).enumerate() {
        let of = |operand: &Operand| operand.sums[token * operand.rows..][..operand.rows].to_vec();
        let all: Vec<f64> = match case.finish {
            Finish::Pair => {
                let both = of(&operands[0]).into_iter().zip(of(&operands[1]));
                both.map(|(gate, up)| silu(gate) * up).collect()
            }
            _ => operands.iter().filter(|operand| operand.rows > 0).flat_map(of).collect(),
        };
        for (y, sum) in y[BEFORE..].iter_mut().zip(all) {
            *y = match case.finish {
                Finish::Store | Finish::Pair => sum,
                Finish::Add => *y + sum,
                Finish::Gate => silu(*y) * sum,
            };
        }
    }
    want
}

/// Runs one of the two kernels; what lies around the tensors and the result must stay out of it.
pub fn multiply(device: &Device, case: Case) {
    let Case { format, columns, tokens, finish, .. } = case;
    let mut random = Random::new(tokens as u64);
    let x = random.normals(tokens * columns, 1.0);
    let mut unit = Unit(vec![0xff; OFFSET]);
    let norm = case.has_norm.then(|| random.normals(columns, 1.0));
    let norm_place = norm.as_ref().map_or(NOWHERE, |norm| unit.push_floats(norm));
    let input: Vec<f64> = match &norm {
        None => x.iter().copied().map(f64::from).collect(),
        Some(norm) => x.chunks_exact(columns).flat_map(|x| normalised(x, norm)).collect(),
    };
    let operands = case.rows.map(|rows| Operand::new(&case, rows, &input, &mut unit));
    unit.push(&[0xff; 64]);
    let outputs = if finish == Finish::Pair { case.rows[0] } else { case.rows.iter().sum() };
    let pitch = BEFORE + outputs + BEHIND;
    let before = random.normals(tokens * pitch, 1.0);
    let want = finished(&case, &operands, &before, pitch);
    let y = device.floats(&before);
    let (x, unit) = (device.floats(&x), device.block(&unit.0));
    let call = match case.is_few() {
        true => device.call(MATMUL_FEW, &[format.format(), few_macro(tokens as u32)]),
        false => device.call(MATMUL_MANY, &[format.format()]),
    };
    let mut call = call.memory(&x).u32(columns).memory(&unit);
    for operand in operands {
        call = call.u64(operand.weights).u64(operand.bias).u32(operand.rows);
    }
    call = call.memory(&y).u32(BEFORE).u32(pitch).u32(finish.number());
    let rows = finish.rows(case.rows);
    match case.is_few() {
        true => call.u64(norm_place).f32(EPSILON).launch(few_launch(rows)),
        false => call.u32(tokens).launch(many_launch(rows, tokens)),
    }
    let have = read_floats(&y);
    let around = |y: &[f32]| -> Vec<f32> {
        let tokens = y.chunks_exact(pitch);
        tokens.flat_map(|y| [&y[..BEFORE], &y[pitch - BEHIND..]].concat()).collect()
    };
    assert_eq!(around(&have), around(&before), "{case:?}");
    let error = error(&have, &want);
    assert!(error < 1e-5, "{case:?}: {error:e}");
}

fn normalised(x: &[f32], norm: &[f32]) -> Vec<f64> {
    let sum: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let factor = 1.0 / (sum / x.len() as f64 + f64::from(EPSILON)).sqrt();
    x.iter().zip(norm).map(|(x, norm)| f64::from(*x) * factor * f64::from(*norm)).collect()
}

#[test]
fn products_for_a_few_tokens_read_every_format() {
    let Some(device) = Device::any() else { return };
    for format in Weights::ALL {
        let columns = 576usize.next_multiple_of(format.block_values());
        for tokens in [1, 8, 16] {
            multiply(&device, Case::new(format, 37, columns, tokens));
        }
    }
    for tokens in 1..=16 {
        multiply(&device, Case::new(Weights::F16, 16, 96, tokens));
    }
}

#[test]
fn products_for_many_tokens_read_every_format() {
    let Some(device) = Device::any() else { return };
    for format in Weights::ALL {
        let columns = 288usize.next_multiple_of(format.block_values());
        for tokens in [17, 70] {
            multiply(&device, Case::new(format, 101, columns, tokens));
        }
    }
}

#[test]
fn rows_and_columns_need_not_fill_a_work_group() {
    let Some(device) = Device::any() else { return };
    for (rows, columns) in [(1, 32), (15, 64), (17, 160), (64, 1024), (65, 32)] {
        multiply(&device, Case::new(Weights::Q8_0, rows, columns, 3));
        multiply(&device, Case::new(Weights::Q8_0, rows, columns, 33));
    }
}

#[test]
fn matrices_with_the_same_input_share_a_launch() {
    let Some(device) = Device::any() else { return };
    for tokens in [1, 8, 33] {
        for rows in [[37, 16, 11], [64, 1, 0], [3, 70, 2]] {
            let case = Case { rows, ..Case::new(Weights::F16, 0, 96, tokens) };
            multiply(&device, case);
            multiply(&device, Case { has_bias: true, ..case });
        }
    }
}

#[test]
fn a_few_tokens_are_normalised_on_the_way() {
    let Some(device) = Device::any() else { return };
    for (tokens, columns) in [(1, 1024), (4, 8), (8, 576), (16, 2048)] {
        let case = Case { has_norm: true, ..Case::new(Weights::F16, 36, columns, tokens) };
        multiply(&device, case);
        multiply(&device, Case { has_bias: true, rows: [20, 8, 4], ..case });
    }
}

#[test]
fn sums_end_in_a_residual_connection_or_a_gate() {
    let Some(device) = Device::any() else { return };
    for (tokens, has_bias) in [(1, false), (1, true), (8, true), (16, false), (40, true)] {
        for finish in [Finish::Add, Finish::Gate] {
            let case = Case::new(Weights::Q4_0, 37, 160, tokens);
            multiply(&device, Case { finish, has_bias, ..case });
        }
        // Rows that fill neither a four nor a group, and such that do.
        for rows in [1, 6, 33, 64, 131] {
            let case = Case::new(Weights::Q8_0, 0, 160, tokens);
            let pair = Case { rows: [rows, rows, 0], finish: Finish::Pair, has_bias, ..case };
            multiply(&device, pair);
            multiply(&device, Case { has_norm: pair.is_few(), ..pair });
        }
    }
}
