//! Shapes of well-known models, for models with random weights. Sizes are those of the published
//! configurations.

use clap::ValueEnum;

/// A shape by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// 4 small layers: for a quick look, and for tests.
    Tiny,
    /// SmolLM2-135M: 30 layers of 7 MB, 22.5 KiB of KV a token.
    #[value(name = "smollm2-135m")]
    Smollm2_135m,
    /// Qwen3-0.6B: 28 layers of 31 MB, 112 KiB of KV a token.
    #[value(name = "qwen3-0.6b")]
    Qwen3_0_6b,
    /// Qwen3-1.7B: 28 layers of 101 MB, 112 KiB of KV a token.
    #[value(name = "qwen3-1.7b")]
    Qwen3_1_7b,
    /// Llama-3.2-1B: 16 layers of 122 MB, 32 KiB of KV a token.
    #[value(name = "llama3.2-1b")]
    Llama3_2_1b,
    /// EXAONE-4.0-1.2B: 30 layers of 71 MB, 60 KiB of KV a token; its sizes, wired as Qwen3 is.
    #[value(name = "exaone-4.0-1.2b")]
    Exaone4_0_1_2b,
    /// Gemma-2-2B: 26 layers of 156 MB, 104 KiB of KV a token; its sizes, wired as Qwen3 is.
    #[value(name = "gemma2-2b")]
    Gemma2_2b,
}

/// How a block is wired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Norms before attention and before the feed-forward part.
    Llama,
    /// The same, and norms on each head's query and key.
    Qwen3,
}

impl Wiring {
    /// `general.architecture`, which is also the prefix of the keys.
    pub const fn name(self) -> &'static str {
        match self {
            Wiring::Llama => "llama",
            Wiring::Qwen3 => "qwen3",
        }
    }

    pub const fn has_head_norms(self) -> bool {
        matches!(self, Wiring::Qwen3)
    }
}

/// Scaling of rotary frequencies for long contexts, as Llama 3 does it: frequencies whose wave is
/// longer than the old context are divided by `factor`, short ones kept, a ramp between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    pub factor: f32,
    pub low: f32,
    pub high: f32,
    pub old_context: f32,
}

/// The numbers that fix a model's tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    pub name: &'static str,
    pub wiring: Wiring,
    pub layers: u32,
    pub width: u32,
    pub feed_forward: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub vocabulary: u32,
    pub context: u32,
    pub rope_base: f32,
    pub rope_scaling: Option<RopeScaling>,
    pub norm_epsilon: f32,
}

const TINY: Config = Config {
    name: "tiny",
    wiring: Wiring::Llama,
    layers: 4,
    width: 128,
    feed_forward: 384,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    vocabulary: 1024,
    context: 8192,
    rope_base: 10_000.0,
    rope_scaling: None,
    norm_epsilon: 1e-5,
};

const SMOLLM2_135M: Config = Config {
    name: "smollm2-135m",
    wiring: Wiring::Llama,
    layers: 30,
    width: 576,
    feed_forward: 1536,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    vocabulary: 49_152,
    context: 8192,
    rope_base: 100_000.0,
    rope_scaling: None,
    norm_epsilon: 1e-5,
};

const QWEN3_0_6B: Config = Config {
    name: "qwen3-0.6b",
    wiring: Wiring::Qwen3,
    layers: 28,
    width: 1024,
    feed_forward: 3072,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    vocabulary: 151_936,
    context: 40_960,
    rope_base: 1_000_000.0,
    rope_scaling: None,
    norm_epsilon: 1e-6,
};

const QWEN3_1_7B: Config =
    Config { name: "qwen3-1.7b", width: 2048, feed_forward: 6144, ..QWEN3_0_6B };

const LLAMA3_2_1B: Config = Config {
    name: "llama3.2-1b",
    wiring: Wiring::Llama,
    layers: 16,
    width: 2048,
    feed_forward: 8192,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    vocabulary: 128_256,
    context: 131_072,
    rope_base: 500_000.0,
    rope_scaling: Some(RopeScaling { factor: 32.0, low: 1.0, high: 4.0, old_context: 8192.0 }),
    norm_epsilon: 1e-5,
};

const EXAONE_4_0_1_2B: Config = Config {
    name: "exaone-4.0-1.2b",
    wiring: Wiring::Qwen3,
    layers: 30,
    width: 2048,
    feed_forward: 4096,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    vocabulary: 102_400,
    context: 65_536,
    rope_base: 1_000_000.0,
    rope_scaling: None,
    norm_epsilon: 1e-5,
};

const GEMMA2_2B: Config = Config {
    name: "gemma2-2b",
    wiring: Wiring::Qwen3,
    layers: 26,
    width: 2304,
    feed_forward: 9216,
    heads: 8,
    kv_heads: 4,
    head_dim: 256,
    vocabulary: 256_000,
    context: 8192,
    rope_base: 10_000.0,
    rope_scaling: None,
    norm_epsilon: 1e-6,
};

impl Shape {
    pub const fn config(self) -> &'static Config {
        match self {
            Shape::Tiny => &TINY,
            Shape::Smollm2_135m => &SMOLLM2_135M,
            Shape::Qwen3_0_6b => &QWEN3_0_6B,
            Shape::Qwen3_1_7b => &QWEN3_1_7B,
            Shape::Llama3_2_1b => &LLAMA3_2_1B,
            Shape::Exaone4_0_1_2b => &EXAONE_4_0_1_2B,
            Shape::Gemma2_2b => &GEMMA2_2B,
        }
    }
}

impl Config {
    /// Bytes of one layer's matrices as halves.
    pub const fn layer_bytes(&self) -> u64 {
        let attention = 2 * (self.heads + self.kv_heads) * self.head_dim;
        2 * self.width as u64 * (attention + 3 * self.feed_forward) as u64
    }
}

impl RopeScaling {
    /// By what each of the `head_dim / 2` frequencies is divided.
    #[expect(clippy::cast_precision_loss, reason = "indices below 2^24")]
    pub fn divisors(&self, base: f32, head_dim: u32) -> Vec<f32> {
        let divisor = |pair: u32| {
            let frequency = base.powf(-2.0 * pair as f32 / head_dim as f32);
            let wave = 2.0 * std::f32::consts::PI / frequency;
            let turns = self.old_context / wave;
            let ramp = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
            1.0 / ((1.0 - ramp) / self.factor + ramp)
        };
        (0..head_dim / 2).map(divisor).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv_bytes_per_token(config: &Config) -> u32 {
        config.layers * config.kv_heads * config.head_dim * 2 * 2
    }

    #[test]
    fn kv_sizes_are_those_of_the_models() {
        let cases = [
            (Shape::Smollm2_135m, 45 << 9),
            (Shape::Qwen3_0_6b, 112 << 10),
            (Shape::Qwen3_1_7b, 112 << 10),
            (Shape::Llama3_2_1b, 32 << 10),
            (Shape::Exaone4_0_1_2b, 60 << 10),
            (Shape::Gemma2_2b, 104 << 10),
        ];
        for (shape, bytes) in cases {
            assert_eq!(kv_bytes_per_token(shape.config()), bytes, "{shape:?}");
        }
    }

    #[test]
    fn layers_are_as_large_as_is_said() {
        let megabytes = |shape: Shape| shape.config().layer_bytes() / 1_000_000;
        assert_eq!(megabytes(Shape::Smollm2_135m), 7);
        assert_eq!(megabytes(Shape::Qwen3_0_6b), 31);
        assert_eq!(megabytes(Shape::Qwen3_1_7b), 100);
        assert_eq!(megabytes(Shape::Llama3_2_1b), 121);
        assert_eq!(megabytes(Shape::Exaone4_0_1_2b), 71);
        assert_eq!(megabytes(Shape::Gemma2_2b), 155);
    }

    #[test]
    fn names_on_the_command_line_are_the_configs_names() {
        for shape in Shape::value_variants() {
            let value = shape.to_possible_value().unwrap();
            assert_eq!(value.get_name(), shape.config().name);
        }
    }

    #[test]
    fn heads_divide_and_sizes_fit_the_library() {
        for config in Shape::value_variants().iter().map(|shape| shape.config()) {
            assert_eq!(config.heads % config.kv_heads, 0);
            let head_dim = u16::try_from(config.head_dim).unwrap();
            assert!(
                (mzcache::limits::HEAD_DIM_MIN..=mzcache::limits::HEAD_DIM_MAX).contains(&head_dim)
            );
            assert!(config.layers < u32::from(mzcache::limits::LAYERS_MAX));
        }
    }

    #[test]
    fn rope_scaling_keeps_fast_and_divides_slow_frequencies() {
        let config = Shape::Llama3_2_1b.config();
        let divisors = config.rope_scaling.unwrap().divisors(config.rope_base, config.head_dim);
        assert_eq!(divisors.len(), 32);
        assert_eq!(divisors[0], 1.0);
        assert!((divisors[31] - 32.0).abs() < 1e-3, "{}", divisors[31]);
        assert!(divisors.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
