//! What kernels must compute, in double precision and in the plainest way.

use super::values::wide;

/// Attention of queries that are the context's last tokens.
pub struct Attention<'a> {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub queries: usize,
    pub context: usize,
    /// Keys that a query sees; 0: all.
    pub window: usize,
    /// 0: none.
    pub softcap: f64,
    /// `[queries][heads][head_dim]`, scaled.
    pub q: &'a [f32],
    /// `[context][kv_heads][head_dim]`.
    pub k: &'a [u16],
    pub v: &'a [u16],
}

impl Attention<'_> {
    /// `[queries][heads][head_dim]`.
    pub fn compute(&self) -> Vec<f64> {
        let (k, v) = (wide(self.k), wide(self.v));
        let mut y = vec![0.0; self.q.len()];
        let rows = self.q.chunks_exact(self.head_dim).zip(y.chunks_exact_mut(self.head_dim));
        for (row, (q, y)) in rows.enumerate() {
            let (query, head) = (row / self.heads, row % self.heads);
            let end = self.context - self.queries + query + 1;
            let first = if self.window == 0 { 0 } else { end.saturating_sub(self.window) };
            let kv_head = head / (self.heads / self.kv_heads);
            let at = |token: usize| (token * self.kv_heads + kv_head) * self.head_dim;
            let scores: Vec<f64> = (first..end)
                .map(|token| {
                    let k = &k[at(token)..][..self.head_dim];
                    let score = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    self.cap(score)
                })
                .collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut total = 0.0;
            for (token, score) in (first..end).zip(scores) {
                let p = (score - largest).exp();
                total += p;
                for (y, v) in y.iter_mut().zip(&v[at(token)..]) {
                    *y += p * f64::from(*v);
                }
            }
            y.iter_mut().for_each(|y| *y /= total);
        }
        y
    }

    fn cap(&self, score: f64) -> f64 {
        match self.softcap {
            0.0 => score,
            cap => cap * (score / cap).tanh(),
        }
    }
}

/// `y[token][row] = w[row] . x[token]`.
pub fn product(w: &[f32], x: &[f64], columns: usize) -> Vec<f64> {
    let dot = |w: &[f32], x: &[f64]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
    x.chunks_exact(columns).flat_map(|x| w.chunks_exact(columns).map(move |w| dot(w, x))).collect()
}
