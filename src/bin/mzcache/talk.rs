//! What a line typed into `chat` means.

use crate::amount::Amount;

/// A line of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// To the model.
    Say(String),
    Evict(Amount),
    Stats,
    Restore,
    Help,
    Quit,
    /// Nothing was typed.
    Empty,
}

/// What `/help` prints.
pub const HELP: &str = "\
/evict 75%     evict three quarters of what is resident; or a size, as /evict 512MiB
/stats         what is resident, packed and on storage
/restore       bring everything back now
/quit          end (so does Ctrl-D)
Anything else is said to the model; begin with // to say a line that starts with /.
";

/// Reads a line; the error says what to type instead.
pub fn read(line: &str) -> Result<Line, String> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(Line::Empty);
    }
    let Some(command) = line.strip_prefix('/') else { return Ok(Line::Say(line.to_owned())) };
    if command.starts_with('/') {
        return Ok(Line::Say(command.to_owned()));
    }
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    match (name, rest.trim()) {
        ("evict", "") => Err("how much? for example /evict 75% or /evict 512MiB".to_owned()),
        ("evict", amount) => amount.parse().map(Line::Evict),
        ("stats", "") => Ok(Line::Stats),
        ("restore", "") => Ok(Line::Restore),
        ("help", "") => Ok(Line::Help),
        ("quit" | "exit", "") => Ok(Line::Quit),
        _ => Err(format!("unknown command `{line}`; /help lists them")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amount::Size;

    #[test]
    fn lines_are_said_or_obeyed() {
        assert_eq!(read(" hello there \n"), Ok(Line::Say("hello there".to_owned())));
        assert_eq!(read("//etc is a path"), Ok(Line::Say("/etc is a path".to_owned())));
        assert_eq!(read("/evict  512MiB"), Ok(Line::Evict(Amount::Bytes(Size(512 << 20)))));
        assert!(matches!(read("/evict 75%"), Ok(Line::Evict(Amount::Share(_)))));
        assert_eq!(read("/stats"), Ok(Line::Stats));
        assert_eq!(read("/restore "), Ok(Line::Restore));
        assert_eq!(read("/help"), Ok(Line::Help));
        assert_eq!(read("/exit"), Ok(Line::Quit));
        assert_eq!(read("  "), Ok(Line::Empty));
    }

    #[test]
    fn what_is_wrong_is_explained() {
        assert!(read("/evict").unwrap_err().contains("/evict 75%"));
        assert!(read("/evict 175%").unwrap_err().contains("outside"));
        assert!(read("/evict much").unwrap_err().contains("512MiB"));
        assert!(read("/stats now").unwrap_err().contains("/help"));
        assert!(read("/dance").unwrap_err().contains("/dance"));
    }
}
