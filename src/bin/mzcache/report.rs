//! What `demo` found, as a table for people and as JSON for programs; the JSON's names are fixed.

use crate::amount::{Size, time};
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;
use std::time::Duration;

/// One row: what happened with that share of memory left.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Level {
    /// The share that was to remain, 0 to 100.
    pub remaining_pct: f64,
    /// Bytes resident after the eviction, by the library's own account.
    pub bytes_resident: u64,
    /// By how much the process really shrank.
    /// As it is booked.
    pub bytes_freed: u64,
    /// By how much the process shrank; not known where a device has memory of its own.
    pub bytes_freed_measured: Option<u64>,
    /// From the question to the first token, restoring meanwhile.
    pub ttft_ms: f64,
    /// The same where whole layers were offloaded and are read back, in order, before the prefill.
    pub partial_offload_ttft_ms: f64,
    /// The same with nothing evicted.
    pub in_memory_ttft_ms: f64,
    /// Whether the answer has the tokens that it has without eviction.
    pub tokens_match: bool,
    /// Whether every further cycle of eviction and restoration gave the same tokens again.
    pub tokens_repeat: bool,
}

/// Everything a demonstration found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub model: String,
    pub weights_bytes: u64,
    pub kv_bytes: u64,
    pub context_tokens: u32,
    pub prompt_tokens: u32,
    pub answer_tokens: u32,
    pub codec: &'static str,
    pub threads: u16,
    /// Whether the model file was read past the page cache.
    pub is_direct: bool,
    pub levels: Vec<Level>,
}

impl Report {
    /// A heading, the table, and what the columns mean.
    pub fn text(&self) -> String {
        let mut text = self.heading();
        text.push_str(&self.table().to_string());
        text.push_str(FOOTER);
        if !self.levels.iter().all(|level| level.tokens_match) {
            text.push_str(&format!(
                "stable: codec {} changes values once, so tokens differ from those without\n\
                 eviction, and are the same in every further cycle; with raw none differ.\n",
                self.codec
            ));
        }
        text
    }

    fn heading(&self) -> String {
        let io = if self.is_direct { "direct I/O" } else { "buffered I/O (no O_DIRECT here)" };
        format!(
            "{}: weights {}, KV cache {} ({} tokens), codec {}, {} threads, {io}\n",
            self.model,
            Size(self.weights_bytes),
            Size(self.kv_bytes),
            self.context_tokens,
            self.codec,
            self.threads,
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "remaining",
            "before",
            "after",
            "freed",
            "first token",
            "offload",
            "in memory",
            "speed-up",
            "same tokens",
        ]);
        for level in &self.levels {
            let row = level.row().map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
            table.add_row(row);
        }
        table
    }
}

const FOOTER: &str = "
before, after: memory resident; freed: by how much the process shrank, or, where a device has memory
of its own, as booked. first token: mzcache, restoring while it computes.
offload: whole layers read back in order, then the prefill. speed-up: offload / first token.
";

impl Level {
    fn row(&self) -> [String; 9] {
        let freed = self.bytes_freed_measured.unwrap_or(self.bytes_freed);
        let before = self.bytes_resident.saturating_add(freed);
        [
            format!("{} %", self.remaining_pct),
            Size(before).to_string(),
            Size(self.bytes_resident).to_string(),
            Size(freed).to_string(),
            millis(self.ttft_ms),
            millis(self.partial_offload_ttft_ms),
            millis(self.in_memory_ttft_ms),
            ratio(self.partial_offload_ttft_ms, self.ttft_ms),
            match (self.tokens_match, self.tokens_repeat) {
                (true, _) => "yes",
                (false, true) => "stable",
                (false, false) => "no",
            }
            .to_owned(),
        ]
    }
}

fn millis(value: f64) -> String {
    match Duration::try_from_secs_f64(value / 1e3) {
        Ok(duration) => time(duration),
        Err(_) => "-".to_owned(),
    }
}

fn ratio(whole: f64, part: f64) -> String {
    let ratio = whole / part;
    if ratio.is_finite() { format!("{ratio:.2}x") } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let level = Level {
            remaining_pct: 25.0,
            bytes_resident: 75 << 20,
            bytes_freed: 225 << 20,
            bytes_freed_measured: Some(225 << 20),
            ttft_ms: 120.0,
            partial_offload_ttft_ms: 300.0,
            in_memory_ttft_ms: 71.0,
            tokens_match: true,
            tokens_repeat: true,
        };
        Report {
            model: "smollm2-135m".to_owned(),
            weights_bytes: 258 << 20,
            kv_bytes: 45 << 20,
            context_tokens: 2048,
            prompt_tokens: 8,
            answer_tokens: 8,
            codec: "q8",
            threads: 2,
            is_direct: true,
            levels: vec![level],
        }
    }

    #[test]
    fn json_has_the_promised_names() {
        let value = serde_json::to_value(report()).unwrap();
        let level = value["levels"][0].as_object().unwrap();
        let mut names: Vec<&str> = level.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "bytes_freed",
                "bytes_freed_measured",
                "bytes_resident",
                "in_memory_ttft_ms",
                "partial_offload_ttft_ms",
                "remaining_pct",
                "tokens_match",
                "tokens_repeat",
                "ttft_ms",
            ]
        );
        assert_eq!(level["remaining_pct"], 25.0);
        assert_eq!(level["tokens_match"], true);
    }

    #[test]
    fn the_table_shows_memory_times_and_their_ratio() {
        let text = report().text();
        for part in ["25 %", "300.0 MiB", "75.0 MiB", "225.0 MiB", "120 ms", "2.50x", "yes"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("stable"));
        assert!(text.lines().all(|line| line.len() <= 120), "{text}");
    }

    #[test]
    fn other_tokens_are_explained_and_odd_numbers_shown_as_none() {
        let mut report = report();
        report.levels[0].tokens_match = false;
        report.levels[0].ttft_ms = 0.0;
        report.levels[0].in_memory_ttft_ms = f64::NAN;
        let text = report.text();
        assert!(text.contains("with raw none"), "{text}");
        assert!(text.contains("| - ") || text.contains(" - |"), "{text}");
    }
}
