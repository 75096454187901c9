//! Matrix products: which matrices share a command, and what it does besides multiplying.
//!
//! Matrices of one format that take the same values are multiplied in one command; files that mix
//! formats within a layer cost one more for each change of format. A few tokens are normalised by
//! the product itself, many by a command of their own.

use super::launch::Call;
use super::layer::Stage;
use super::programs::{Programs, class_of, weights_of};
use crate::error::Result;
use crate::infer::model::{Layer, Tensor};
use crate::infer::names::Role;
use crate::kernel::opencl::{Finish, Launch, MATRICES_MAX, few_launch, many_launch, norm_launch};
use crate::port::DeviceRegion;
use crate::port::opencl::Event;

/// A matrix, and what is added to its outputs.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) weight: &'a Tensor,
    pub(super) bias: Option<&'a Tensor>,
}

impl<'a> Matrix<'a> {
    pub(super) fn new(layer: &'a Layer, weight: Role, bias: Role) -> Self {
        Matrix { weight: layer.tensor(weight), bias: layer.optional(bias) }
    }
}

/// One product, of one unit's matrices.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) unit: DeviceRegion,
    pub(super) matrices: &'a [Matrix<'a>],
    /// `[tokens][columns]`.
    pub(super) x: DeviceRegion,
    /// Weights of the RMS norm that `x` goes through first.
    pub(super) norm: Option<&'a Tensor>,
    /// `[tokens][outputs]`, the matrices' outputs one after the other.
    pub(super) y: DeviceRegion,
    pub(super) finish: Finish,
    pub(super) tokens: usize,
}

/// The part of a product that is one command.
struct Command<'a> {
    matrices: &'a [Matrix<'a>],
    finish: Finish,
    /// Where its outputs start in a token's, and how many those are.
    first: usize,
    pitch: usize,
}

impl<'a> Product<'a> {
    /// Calls `each` with the product's commands in order.
    fn commands(&self, mut each: impl FnMut(Command<'a>) -> Result<()>) -> Result<()> {
        let rows = |matrices: &[Matrix<'_>]| matrices.iter().map(|m| m.weight.rows).sum::<usize>();
        let is_pair = self.finish == Finish::Pair;
        let pitch = rows(self.matrices) / if is_pair { 2 } else { 1 };
        let mut first = 0;
        for matrices in self.matrices.chunk_by(|a, b| a.weight.kind == b.weight.kind) {
            let finish = match self.finish {
                Finish::Pair if matrices.len() == 1 && first == 0 => Finish::Store,
                Finish::Pair if matrices.len() == 1 => Finish::Gate,
                finish => finish,
            };
            // A gate's outputs are where those of what it gates go.
            let first_output = if is_pair { 0 } else { first };
            each(Command { matrices, finish, first: first_output, pitch })?;
            first += rows(matrices);
        }
        Ok(())
    }
}

impl Stage<'_> {
    pub(super) fn multiply(&mut self, product: Product<'_>) -> Result<()> {
        let product = self.normalise(product)?;
        product.commands(|command| {
            let epsilon = self.shape.norm_epsilon;
            let (call, launch) = prepare(self.programs, &product, &command, epsilon);
            call.launch(&self.queue, launch)
        })
    }

    /// As `multiply`, for the last product of a layer; the answer is its completion.
    pub(super) fn multiply_last(&mut self, product: Product<'_>) -> Result<Option<Event>> {
        let product = self.normalise(product)?;
        let mut done = None;
        product.commands(|command| {
            let epsilon = self.shape.norm_epsilon;
            let (call, launch) = prepare(self.programs, &product, &command, epsilon);
            done = Some(call.launch_event(&self.queue, launch)?);
            Ok(())
        })?;
        Ok(done)
    }

    /// Many tokens are normalised first.
    fn normalise<'p>(&mut self, product: Product<'p>) -> Result<Product<'p>> {
        let (Some(weight), None) = (product.norm, class_of(product.tokens)) else {
            return Ok(product);
        };
        let Some(kernel) = &mut self.programs.norm else {
            unreachable!("built for every batch that the configuration allows")
        };
        let h = self.work.h.region();
        Call::new(kernel)
            .memory(product.x)
            .memory(product.unit)
            .place(product.unit, Some(weight))
            .memory(h)
            .number(weight.cols)
            .float(self.shape.norm_epsilon)
            .launch(&self.queue, norm_launch(product.tokens))?;
        Ok(Product { x: h, norm: None, ..product })
    }
}

fn prepare<'k>(
    programs: &'k mut Programs,
    product: &Product<'_>,
    command: &Command<'_>,
    epsilon: f32,
) -> (Call<'k>, Launch) {
    let &Product { unit, tokens, .. } = product;
    let &Command { matrices, finish, .. } = command;
    let [Matrix { weight, .. }, ..] = matrices else { unreachable!("a command has a matrix") };
    let products = &mut programs.products[weights_of(weight) as usize];
    let class = class_of(tokens);
    let kernel = match class {
        Some(class) => products.few[class].as_mut(),
        None => products.many.as_mut(),
    };
    let Some(kernel) = kernel else {
        unreachable!("built for every batch that the configuration allows")
    };
    let mut call = Call::new(kernel).memory(product.x).number(weight.cols).memory(unit);
    for index in 0..MATRICES_MAX {
        let matrix = matrices.get(index);
        call = call
            .place(unit, matrix.map(|matrix| matrix.weight))
            .place(unit, matrix.and_then(|matrix| matrix.bias))
            .number(matrix.map_or(0, |matrix| matrix.weight.rows));
    }
    call = call.memory(product.y).number(command.first).number(command.pitch).word(finish.number());
    let rows = finish.rows(matrices.iter().map(|matrix| matrix.weight.rows));
    match class {
        Some(_) => (call.place(unit, product.norm).float(epsilon), few_launch(rows)),
        None => (call.number(tokens), many_launch(rows, tokens)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::math::WeightType;
    use std::vec::Vec;

    fn tensor(kind: WeightType, rows: usize) -> Tensor {
        Tensor { offset: 0, bytes: 0, kind, rows, cols: 32 }
    }

    /// Rows of each command, its finish, its first output, and the outputs of a token.
    fn commands(weights: &[Tensor], finish: Finish) -> Vec<(Vec<usize>, Finish, usize, usize)> {
        let region = DeviceRegion::default();
        let matrices: Vec<_> = weights.iter().map(|weight| Matrix { weight, bias: None }).collect();
        let product = Product {
            unit: region,
            matrices: &matrices,
            x: region,
            norm: None,
            y: region,
            finish,
            tokens: 1,
        };
        let mut seen = Vec::new();
        let each = |command: Command<'_>| {
            let rows = command.matrices.iter().map(|matrix| matrix.weight.rows).collect();
            seen.push((rows, command.finish, command.first, command.pitch));
            Ok(())
        };
        product.commands(each).unwrap();
        seen
    }

    #[test]
    fn matrices_of_one_format_share_a_command() {
        let [a, b] = [WeightType::F16, WeightType::Q8_0];
        let store = Finish::Store;
        let same = [tensor(a, 6), tensor(a, 2), tensor(a, 2)];
        assert_eq!(commands(&same, store), [([6, 2, 2].to_vec(), store, 0, 10)]);
        let last = [tensor(a, 6), tensor(a, 2), tensor(b, 2)];
        let two = [([6, 2].to_vec(), store, 0, 10), ([2].to_vec(), store, 8, 10)];
        assert_eq!(commands(&last, store), two);
        let all = [tensor(a, 6), tensor(b, 2), tensor(a, 2)];
        let starts: Vec<_> = commands(&all, store).into_iter().map(|each| each.2).collect();
        assert_eq!(starts, [0, 6, 8]);
    }

    #[test]
    fn a_pair_of_two_formats_is_a_gate_and_what_it_gates() {
        let [a, b] = [WeightType::F16, WeightType::Q8_0];
        let same = commands(&[tensor(a, 6), tensor(a, 6)], Finish::Pair);
        assert_eq!(same, [([6, 6].to_vec(), Finish::Pair, 0, 6)]);
        let mixed = commands(&[tensor(a, 6), tensor(b, 6)], Finish::Pair);
        let two = [([6].to_vec(), Finish::Store, 0, 6), ([6].to_vec(), Finish::Gate, 0, 6)];
        assert_eq!(mixed, two);
    }
}
