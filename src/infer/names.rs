//! The tensors of a layer by their names in the file.

/// What a tensor of a layer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// RMS norm before attention.
    AttnNorm,
    /// Query projection.
    Q,
    /// Key projection.
    K,
    /// Value projection.
    V,
    /// Output projection of attention.
    AttnOutput,
    /// RMS norm of each query head.
    QNorm,
    /// RMS norm of each key head.
    KNorm,
    /// RMS norm before the feed-forward part.
    FfnNorm,
    /// Gate projection.
    Gate,
    /// Up projection.
    Up,
    /// Down projection.
    Down,
    /// Bias of [`Role::Q`].
    QBias,
    /// Bias of [`Role::K`].
    KBias,
    /// Bias of [`Role::V`].
    VBias,
    /// Bias of [`Role::AttnOutput`].
    AttnOutputBias,
    /// Bias of [`Role::Gate`].
    GateBias,
    /// Bias of [`Role::Up`].
    UpBias,
    /// Bias of [`Role::Down`].
    DownBias,
}

/// Number of roles.
pub const ROLES: usize = 18;

impl Role {
    /// All of them; the position is [`Role::index`].
    pub const ALL: [Role; ROLES] = [
        Role::AttnNorm,
        Role::Q,
        Role::K,
        Role::V,
        Role::AttnOutput,
        Role::QNorm,
        Role::KNorm,
        Role::FfnNorm,
        Role::Gate,
        Role::Up,
        Role::Down,
        Role::QBias,
        Role::KBias,
        Role::VBias,
        Role::AttnOutputBias,
        Role::GateBias,
        Role::UpBias,
        Role::DownBias,
    ];

    /// As a slice index.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in the file, after `blk.N.`.
    pub const fn name(self) -> &'static str {
        match self {
            Role::AttnNorm => "attn_norm.weight",
            Role::Q => "attn_q.weight",
            Role::K => "attn_k.weight",
            Role::V => "attn_v.weight",
            Role::AttnOutput => "attn_output.weight",
            Role::QNorm => "attn_q_norm.weight",
            Role::KNorm => "attn_k_norm.weight",
            Role::FfnNorm => "ffn_norm.weight",
            Role::Gate => "ffn_gate.weight",
            Role::Up => "ffn_up.weight",
            Role::Down => "ffn_down.weight",
            Role::QBias => "attn_q.bias",
            Role::KBias => "attn_k.bias",
            Role::VBias => "attn_v.bias",
            Role::AttnOutputBias => "attn_output.bias",
            Role::GateBias => "ffn_gate.bias",
            Role::UpBias => "ffn_up.bias",
            Role::DownBias => "ffn_down.bias",
        }
    }

    /// The role of that name.
    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Whether a layer may do without.
    pub const fn is_bias(self) -> bool {
        self.index() >= Role::QBias.index()
    }

    /// Whether it is a per-head norm of queries or keys.
    pub const fn is_head_norm(self) -> bool {
        matches!(self, Role::QNorm | Role::KNorm)
    }
}

/// Layer number and rest of a name `blk.N.rest`.
pub fn split_layer_name(name: &str) -> Option<(u16, &str)> {
    let (number, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    // One spelling for each layer: no signs, no leading zeros.
    if number.starts_with('+') || (number.len() > 1 && number.starts_with('0')) {
        return None;
    }
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_at_their_index_and_names_are_unique() {
        for (index, role) in Role::ALL.into_iter().enumerate() {
            assert_eq!(role.index(), index);
            assert_eq!(Role::from_name(role.name()), Some(role));
        }
    }

    #[test]
    fn layer_names_have_one_spelling() {
        assert_eq!(split_layer_name("blk.12.attn_q.weight"), Some((12, "attn_q.weight")));
        assert_eq!(split_layer_name("blk.0.x"), Some((0, "x")));
        for bad in ["blk.01.x", "blk.+1.x", "blk.-1.x", "blk..x", "blk.70000.x", "output", "blk.1"]
        {
            assert_eq!(split_layer_name(bad), None);
        }
    }
}
