//! Groups of products against plain loops, for all kinds of batches and numbers of members.

use super::{Engine, Finish, Product, multiply, scratch_values};
use crate::arena::view;
use crate::error::Code;
use crate::infer::cpu::batch::Batch;
use crate::infer::model::Tensor;
use crate::kernel::CpuFlags;
use crate::kernel::math::{MathKernels, WeightType};
use crate::kernel::support::Random;
use crate::port::Team;
use std::vec;
use std::vec::Vec;

/// Members one after the other.
struct InTurn(usize);

impl Team for InTurn {
    fn width(&self) -> usize {
        self.0
    }

    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        (0..self.0).rev().for_each(work);
    }
}

fn numbers(count: usize, random: &mut Random) -> Vec<f32> {
    (0..count).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect()
}

/// A unit of F32 matrices and biases, one after the other.
struct Unit {
    values: Vec<f32>,
}

impl Unit {
    fn place(&mut self, rows: usize, cols: usize, random: &mut Random) -> Tensor {
        let offset = 4 * self.values.len();
        self.values.extend(numbers(rows * cols, random));
        Tensor { offset, bytes: 4 * rows * cols, kind: WeightType::F32, rows, cols }
    }

    fn value(&self, tensor: &Tensor, row: usize, col: usize) -> f32 {
        self.values[tensor.offset / 4 + row * tensor.cols + col]
    }

    /// Output `row` of a lane, by definition.
    fn expected(&self, weight: &Tensor, bias: Option<&Tensor>, x: &[f32], row: usize) -> f64 {
        let terms = x.iter().enumerate();
        let sum: f64 = terms.map(|(d, x)| f64::from(self.value(weight, row, d) * x)).sum();
        sum + bias.map_or(0.0, |bias| f64::from(self.value(bias, 0, row)))
    }
}

/// The values of one lane of a panel.
fn lane_of(x: &[f32], features: usize, width: usize, lane: usize) -> Vec<f32> {
    let panel = &x[lane / width * features * width..];
    panel.iter().skip(lane % width).step_by(width).take(features).copied().collect()
}

const COLS: usize = 10;

fn check(batch: &Batch, workers: usize, finish: Finish, with_bias: bool) {
    let mut random = Random::new(batch.tokens as u64 * 37 + workers as u64);
    let mut unit = Unit { values: vec![0.0; 3] };
    // As many rows as leave odd remainders in every block size.
    let first = unit.place(67, COLS, &mut random);
    let second = unit.place(67, COLS, &mut random);
    let biases = [unit.place(1, 67, &mut random), unit.place(1, 67, &mut random)];
    let biases = biases.each_ref().map(|bias| with_bias.then_some(bias));
    let x = numbers(COLS * batch.lanes(), &mut random);
    let mut y = vec![f32::NAN; 67 * batch.lanes()];
    let mut z = y.clone();
    let mut scratch = vec![f32::NAN; workers * scratch_values(COLS)];
    let kernels = MathKernels::select(CpuFlags::detect());
    let engine = Engine { kernels: &kernels, team: &InTurn(workers), workers };
    let products = [
        Product { weight: &first, bias: biases[0], y: &mut y },
        Product { weight: &second, bias: biases[1], y: &mut z },
    ];
    let bytes = view::bytes_of(&unit.values);
    multiply(engine, bytes, products, &x, batch, &mut scratch, finish).unwrap();
    for lane in 0..batch.lanes() {
        let x = lane_of(&x, COLS, batch.width, lane);
        let (y, z) = (lane_of(&y, 67, batch.width, lane), lane_of(&z, 67, batch.width, lane));
        for row in 0..67 {
            let first = unit.expected(&first, biases[0], &x, row);
            let second = unit.expected(&second, biases[1], &x, row);
            let expected = match finish {
                Finish::Plain => first,
                Finish::Swiglu => first / (1.0 + (-first).exp()) * second,
            };
            assert!((f64::from(y[row]) - expected).abs() < 1e-5, "{batch:?} {workers}");
            assert!((f64::from(z[row]) - second).abs() < 1e-5);
        }
    }
}

#[test]
fn groups_of_products_are_right_for_all_batches_and_teams() {
    for tokens in [1, 2, 3, 4, 16, 17, 33, 100, 256] {
        for workers in [1, 2, 3, 7, 32] {
            check(&Batch::new(tokens, 0), workers, Finish::Plain, false);
            check(&Batch::new(tokens, 0), workers, Finish::Swiglu, true);
        }
    }
    check(&Batch::singles(9), 4, Finish::Plain, true);
}

#[test]
fn a_tensor_outside_its_unit_is_refused() {
    let weight = Tensor { offset: 8, bytes: 400, kind: WeightType::F32, rows: 10, cols: COLS };
    let kernels = MathKernels::select(CpuFlags::empty());
    let engine = Engine { kernels: &kernels, team: &InTurn(1), workers: 1 };
    let mut scratch = vec![0.0; scratch_values(COLS)];
    let mut run = |unit: &[u8], weight: &Tensor, bias: Option<&Tensor>| {
        let products = [Product { weight, bias, y: &mut [0.0; 10] }];
        let batch = Batch::singles(1);
        multiply(engine, unit, products, &[0.0; COLS], &batch, &mut scratch, Finish::Plain)
    };
    assert!(run(&[0; 408], &weight, None).is_ok());
    assert_eq!(run(&[0; 407], &weight, None).unwrap_err().code, Code::Truncated);
    let bias = Tensor { offset: usize::MAX, bytes: 40, kind: WeightType::F32, rows: 1, cols: 10 };
    assert_eq!(run(&[0; 408], &weight, Some(&bias)).unwrap_err().code, Code::Truncated);
}
