//! The kernels that a model needs, built once at open.
//!
//! Token counts are rounded up to a few classes so that few programs have to be built: the lanes
//! beyond the last token hold old numbers, and nobody reads what comes of them.

use super::Accelerator;
use crate::error::{Code, Error, Result};
use crate::infer::cpu::ComputeConfig;
use crate::infer::model::{Model, Shape, Tensor};
use crate::infer::names::Role;
use crate::kernel::math::WeightType;
use crate::kernel::opencl::{
    ARGMAX, ATTENTION_COMBINE, ATTENTION_MATRIX, ATTENTION_STREAM, ATTENTION_TILE, AttentionMatrix,
    AttentionShape, AttentionStream, AttentionTile, ENERGY, FEW_TOKENS_MAX, HALF, HEADS,
    MATMUL_FEW, MATMUL_MANY, Macro, POOL, RMS_NORM, STREAM_QUERIES_MAX, SUBGROUP, Source, Weights,
    few_macro, heads_macro,
};
use crate::port::opencl::{
    BuildLog, BuildOptions, Compiler, DeviceKind, DriverFamily, Kernel, MemoryMode, Origin,
    Program, ProgramCache, ProgramSource, Ready, Workarounds,
};

/// How kernels are built.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClOptions<'a> {
    /// Where compiled programs are kept; without one every open compiles.
    pub cache: Option<ProgramCache<'a>>,
    /// Compiles in a child process, when there is a cache to pass the result through. Drivers with
    /// [`Workarounds::BUILD_IN_CHILD`] ask for it.
    pub compiler: Option<&'a Compiler<'a>>,
    /// Whether queries and keys are multiplied in half precision; where the device does so faster
    /// if `None`.
    pub half: Option<bool>,
}

/// What building came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClReport {
    /// Programs in all.
    pub programs: u32,
    /// Of these, how many came out of the cache.
    pub cached: u32,
    /// How many a child process compiled.
    pub in_child: u32,
    /// How many could not be kept: the next open compiles them again.
    pub not_kept: u32,
    /// Kernels that need more registers than the device has, and the name of one of them. Always 0
    /// on CPUs.
    pub spilling: u32,
    /// See `spilling`.
    pub spilling_kernel: Option<&'static str>,
    /// Whether queries and keys are multiplied in half precision everywhere.
    pub is_half: bool,
    /// Whether a few queries attend on matrix units, which multiply in half precision always.
    pub has_matrix_units: bool,
    /// Whether sums go through subgroup functions.
    pub has_subgroups: bool,
}

/// Token counts that products of few tokens are built for.
pub(super) const CLASSES: [usize; 4] = [1, 4, 8, 16];

/// The smallest class for so many tokens; `None` for many tokens.
pub(super) fn class_of(tokens: usize) -> Option<usize> {
    CLASSES.into_iter().position(|class| tokens <= class)
}

/// Lanes that so many tokens take.
pub(super) fn lanes(tokens: usize) -> usize {
    class_of(tokens).map_or(tokens, |class| CLASSES[class])
}

/// The kernels' name of an encoding.
pub(super) const fn weights_of(tensor: &Tensor) -> Weights {
    match tensor.kind {
        WeightType::F32 => Weights::F32,
        WeightType::F16 => Weights::F16,
        WeightType::Bf16 => Weights::Bf16,
        WeightType::Q8_0 => Weights::Q8_0,
        WeightType::Q4_0 => Weights::Q4_0,
        WeightType::Q4_1 => Weights::Q4_1,
        WeightType::Q4K => Weights::Q4K,
        WeightType::Q6K => Weights::Q6K,
    }
}

/// Matrix products of one encoding.
#[derive(Default)]
pub(super) struct Products {
    pub(super) few: [Option<Kernel>; CLASSES.len()],
    pub(super) many: Option<Kernel>,
}

/// Sizes of a body of attention for a few queries.
#[derive(Clone, Copy, Debug)]
pub(super) enum FewSizes {
    /// Splits are added up by a second kernel.
    Stream(AttentionStream),
    /// On matrix units, which take halves always.
    Matrix(AttentionMatrix),
}

impl FewSizes {
    pub(super) fn with_queries(self, queries: u32) -> Self {
        match self {
            FewSizes::Stream(sizes) => FewSizes::Stream(sizes.with_queries(queries)),
            FewSizes::Matrix(sizes) => FewSizes::Matrix(sizes.with_queries(queries)),
        }
    }
}

/// Attention over a table.
pub(super) struct Attention {
    /// One query.
    pub(super) one: (Kernel, FewSizes),
    /// Up to [`STREAM_QUERIES_MAX`].
    pub(super) few: Option<(Kernel, FewSizes)>,
    /// More.
    pub(super) many: Option<(Kernel, AttentionTile)>,
    pub(super) combine: Kernel,
    /// Whether the bodies that do not use matrix units take halves.
    pub(super) takes_halves: bool,
}

impl Attention {
    /// The body for few queries, for so many; `None` for many.
    pub(super) fn sizes(&self, tokens: usize) -> Option<FewSizes> {
        let (_, sizes) = match (tokens, &self.few) {
            (1, _) => &self.one,
            (_, Some(few)) if class_of(tokens).is_some() => few,
            _ => return None,
        };
        Some(sizes.with_queries(number(tokens)))
    }

    /// The kernel of [`Attention::sizes`].
    pub(super) fn kernel(&mut self, tokens: usize) -> &mut Kernel {
        match &mut self.few {
            Some((kernel, _)) if tokens > 1 => kernel,
            _ => &mut self.one.0,
        }
    }

    /// In which type so many queries are taken.
    pub(super) fn takes_halves(&self, tokens: usize) -> bool {
        self.takes_halves || matches!(self.sizes(tokens), Some(FewSizes::Matrix(_)))
    }
}

/// All kernels of a model.
pub(super) struct Programs {
    pub(super) products: [Products; Weights::ALL.len()],
    pub(super) attention: Attention,
    pub(super) heads: Kernel,
    pub(super) energy: Kernel,
    /// Of many tokens; products normalise a few by themselves.
    pub(super) norm: Option<Kernel>,
    pub(super) argmax: Kernel,
    pub(super) report: ClReport,
}

const MATRICES: [Role; 7] =
    [Role::Q, Role::K, Role::V, Role::AttnOutput, Role::Gate, Role::Up, Role::Down];

/// Tensors start where kernels load their widest vectors.
const TENSOR_ALIGN: usize = 32;

/// Refuses a model that the kernels do not compute.
pub(super) fn check(model: &Model) -> Result<()> {
    for layer in model.layers {
        for role in MATRICES {
            check_matrix(layer.tensor(role))?;
        }
    }
    check_matrix(&model.head.output)?;
    let small = model.layers.iter().flat_map(|layer| layer.tensors()).chain([&model.head.norm]);
    match small.map(|tensor| tensor.offset).find(|offset| !offset.is_multiple_of(4)) {
        Some(offset) => Err(Error::new(Code::Unsupported, "tensor alignment").with(offset)),
        None => Ok(()),
    }
}

fn check_matrix(tensor: &Tensor) -> Result<()> {
    if !tensor.cols.is_multiple_of(8) {
        return Err(Error::new(Code::Unsupported, "columns on OpenCL").with(tensor.cols));
    }
    if !tensor.offset.is_multiple_of(TENSOR_ALIGN) {
        return Err(Error::new(Code::Unsupported, "tensor alignment").with(tensor.offset));
    }
    Ok(())
}

/// What attention works on, for so many queries.
pub(super) fn attention_shape(shape: &Shape, queries: usize) -> AttentionShape {
    AttentionShape {
        heads: number(shape.heads),
        kv_heads: shape.kv_heads.into(),
        head_dim: shape.head_dim.into(),
        queries: number(queries),
    }
}

/// Dimensions of a model and batches are far below.
pub(super) fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// What an error names when the child ended by itself.
const COMPILER: &str = "compiler";

const NO_SHAPE: Error = Error::new(Code::Unsupported, "shape of attention on OpenCL");

impl Programs {
    pub(super) fn build(
        accelerator: &Accelerator,
        model: &Model,
        config: &ComputeConfig,
        options: &ClOptions<'_>,
        log: &mut BuildLog<'_>,
    ) -> Result<Programs> {
        check(model)?;
        let mut builder = Builder::new(accelerator, options, log);
        let shape = &model.shape;
        let has_many = class_of(config.batch_tokens_max).is_none();
        Ok(Programs {
            products: builder.products(model, config)?,
            attention: builder.attention(shape, config)?,
            heads: builder.kernel(HEADS, &[heads_macro(shape.head_dim.into())])?,
            energy: builder.kernel(ENERGY, &[heads_macro(shape.head_dim.into())])?,
            norm: if has_many { Some(builder.kernel(RMS_NORM, &[])?) } else { None },
            argmax: builder.kernel(ARGMAX, &[])?,
            report: builder.report,
        })
    }
}

struct Builder<'a, 'l, 't> {
    accelerator: &'a Accelerator,
    options: &'a ClOptions<'a>,
    log: &'l mut BuildLog<'t>,
    report: ClReport,
}

impl<'a, 'l, 't> Builder<'a, 'l, 't> {
    fn new(
        accelerator: &'a Accelerator,
        options: &'a ClOptions<'a>,
        log: &'l mut BuildLog<'t>,
    ) -> Self {
        let device = accelerator.device();
        let reduces = !device.workarounds.contains(Workarounds::NO_SUBGROUP_REDUCE);
        let report = ClReport {
            is_half: options.half.unwrap_or(device.fp16),
            has_subgroups: device.subgroups && reduces,
            ..ClReport::default()
        };
        Builder { accelerator, options, log, report }
    }

    fn products(
        &mut self,
        model: &Model,
        config: &ComputeConfig,
    ) -> Result<[Products; Weights::ALL.len()]> {
        let mut products: [Products; Weights::ALL.len()] = Default::default();
        for weights in Weights::ALL {
            let is_it = |tensor: &Tensor| weights_of(tensor) == weights;
            let in_layers = model
                .layers
                .iter()
                .any(|layer| MATRICES.into_iter().any(|role| is_it(layer.tensor(role))));
            let batch = if in_layers { config.batch_tokens_max } else { 0 };
            let rows = if is_it(&model.head.output) { config.logit_rows_max } else { 0 };
            let tokens_max = batch.max(rows);
            let built = &mut products[weights as usize];
            let mut below = 0;
            for (kernel, class) in built.few.iter_mut().zip(CLASSES) {
                if tokens_max > below {
                    let macros = [weights.format(), few_macro(number(class))];
                    *kernel = Some(self.kernel(MATMUL_FEW, &macros)?);
                }
                below = class;
            }
            if tokens_max > below {
                built.many = Some(self.kernel(MATMUL_MANY, &[weights.format()])?);
            }
        }
        Ok(products)
    }

    fn attention(&mut self, shape: &Shape, config: &ComputeConfig) -> Result<Attention> {
        const { assert!(STREAM_QUERIES_MAX == FEW_TOKENS_MAX) };
        let local_bytes = self.accelerator.device().local_bytes;
        let most = usize::try_from(STREAM_QUERIES_MAX).unwrap_or(usize::MAX);
        let one = self.matrix_or_stream(shape, 1)?;
        let few = match config.batch_tokens_max {
            1 => None,
            tokens => Some(self.matrix_or_stream(shape, tokens.min(most))?),
        };
        let many = match config.batch_tokens_max {
            tokens if tokens <= most => None,
            tokens => {
                let sizes = AttentionTile::new(attention_shape(shape, tokens), local_bytes);
                let sizes = sizes.ok_or(NO_SHAPE)?;
                Some((self.kernel(ATTENTION_TILE, &sizes.macros())?, sizes))
            }
        };
        let head_dim = ("MZ_HEAD_DIM", u32::from(shape.head_dim));
        Ok(Attention {
            one,
            few,
            many,
            combine: self.kernel(ATTENTION_COMBINE, &[head_dim])?,
            takes_halves: self.report.is_half,
        })
    }

    /// Matrix units where there are some. Only the compiler knows whether the device is new enough.
    fn matrix_or_stream(&mut self, shape: &Shape, queries: usize) -> Result<(Kernel, FewSizes)> {
        let device = self.accelerator.device();
        let (is_nvidia, local_bytes) =
            (device.driver.family == DriverFamily::Nvidia, device.local_bytes);
        let is_wanted = is_nvidia && self.options.half != Some(false);
        let shape = attention_shape(shape, queries);
        if let Some(sizes) = AttentionMatrix::new(shape).filter(|_| is_wanted) {
            match self.kernel(ATTENTION_MATRIX, &sizes.macros()) {
                Ok(kernel) => {
                    self.report.has_matrix_units = true;
                    return Ok((kernel, FewSizes::Matrix(sizes)));
                }
                Err(error) if error.code == Code::BuildFailed => {}
                Err(error) => return Err(error),
            }
        }
        let sizes = AttentionStream::new(shape, local_bytes).ok_or(NO_SHAPE)?;
        Ok((self.kernel(ATTENTION_STREAM, &sizes.macros())?, FewSizes::Stream(sizes)))
    }

    fn options(&self, macros: &[Macro]) -> Result<BuildOptions> {
        let device = self.accelerator.device();
        let mut options = BuildOptions::for_device(device)?.with("-cl-mad-enable")?;
        for (name, value) in macros {
            options = options.define(name, value)?;
        }
        let flags = [
            (HALF, self.report.is_half),
            (SUBGROUP, self.report.has_subgroups),
            (POOL, self.accelerator.mode == MemoryMode::Buffers),
        ];
        for (name, _) in flags.iter().filter(|(_, is_set)| *is_set) {
            options = options.define(name, 1)?;
        }
        Ok(options)
    }

    fn kernel(&mut self, source: Source, macros: &[Macro]) -> Result<Kernel> {
        let options = self.options(macros)?;
        let (context, queue) = (&self.accelerator.context, &self.accelerator.queue);
        self.report.programs += 1;
        let program = match &self.options.cache {
            None => Program::build_patiently(context, queue, source.pieces, &options, self.log)?,
            Some(cache) => {
                let source = ProgramSource { sources: source.pieces, options: &options };
                let ready = self.cached(cache, &source)?;
                self.report.cached += u32::from(ready.origin == Origin::Cache);
                self.report.in_child += u32::from(ready.origin == Origin::Child);
                self.report.not_kept += u32::from(ready.kept.is_err());
                ready.program
            }
        };
        let kernel = program.kernel(source.name)?;
        if self.accelerator.device().kind != DeviceKind::Cpu && kernel.info()?.private_bytes > 0 {
            self.report.spilling += 1;
            self.report.spilling_kernel = Some(kernel.name());
        }
        Ok(kernel)
    }

    /// From the cache, the child, or this process where the child failed without a crash: it may
    /// not see the device, as when the drivers are in an environment that it did not inherit.
    fn cached(&mut self, cache: &ProgramCache<'_>, source: &ProgramSource<'_>) -> Result<Ready> {
        let Accelerator { context, queue, .. } = self.accelerator;
        let crashes = context.device().workarounds.contains(Workarounds::BUILD_IN_CHILD);
        let compiler = self.options.compiler;
        match cache.program(context, queue, source, compiler, self.log) {
            Err(error) if error.code == Code::BuildFailed && error.what == COMPILER && !crashes => {
                cache.program(context, queue, source, None, self.log)
            }
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_has_a_kernel_of_its_name() {
        for kind in WeightType::ALL {
            let tensor = Tensor { offset: 0, bytes: 0, kind, rows: 1, cols: 256 };
            assert_eq!(std::format!("{:?}", weights_of(&tensor)), std::format!("{kind:?}"));
            assert_eq!(weights_of(&tensor).block_values(), kind.block_values());
        }
    }

    #[test]
    fn matrices_that_wide_loads_would_misread_are_refused() {
        let kind = WeightType::F16;
        let matrix = |offset, cols| {
            let tensor = Tensor { offset, bytes: 0, kind, rows: 1, cols };
            check_matrix(&tensor).map_err(|error| error.what)
        };
        assert_eq!(matrix(64, 8), Ok(()));
        assert_eq!(matrix(64, 12), Err("columns on OpenCL"));
        assert_eq!(matrix(16, 8), Err("tensor alignment"));
    }

    #[test]
    fn every_count_of_tokens_fits_its_lanes() {
        for tokens in 1..=256 {
            assert!(lanes(tokens) >= tokens);
            assert_eq!(class_of(tokens).is_some(), tokens <= 16);
        }
        assert_eq!([1, 2, 5, 9, 17].map(lanes), [1, 4, 8, 16, 17]);
    }
}
