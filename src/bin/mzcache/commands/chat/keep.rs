//! A conversation on disk: what was said as JSON in a file, the context's KV cache in a swap file
//! beside it.
//!
//! Both are brought up to date after each answer, the cache first, under a name that is a hash of
//! its tokens. A kill in between leaves the text of the turn before, and the swap file has that
//! turn's context too. What cannot be recovered is computed again from the text.

use crate::engine::Engine;
use crate::failure::{Failure, Outcome};
use crate::place;
use crate::template::{Message, Role};
use mzcache::Code;
use mzcache::units::{Tag, TokenCount};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// No conversation comes near it, and no other file is read whole.
const BYTES_MAX: u64 = 64 << 20;
const VERSION: u32 = 1;

/// Where one conversation is kept.
pub struct Keep {
    path: PathBuf,
}

/// What was found there.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub messages: Vec<Message>,
    /// The tokens that the context held.
    pub tokens: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    messages: Vec<Said>,
    tokens: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
struct Said {
    role: Speaker,
    content: String,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Speaker {
    System,
    User,
    Assistant,
}

impl Keep {
    pub fn new(path: &Path) -> Self {
        Keep { path: path.to_path_buf() }
    }

    /// The swap file that goes with it.
    pub fn swap(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".kv");
        PathBuf::from(name)
    }

    /// `None` where there is no such file yet.
    pub fn read(&self) -> Outcome<Option<Kept>> {
        let failed = |error: std::io::Error| Failure::file("read", &self.path, &error);
        let bytes = match fs::metadata(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
            Ok(known) if known.len() > BYTES_MAX || !known.is_file() => {
                return Err(self.foreign("it is no file of a conversation's size"));
            }
            Ok(_) => fs::read(&self.path).map_err(failed)?,
        };
        let document: Document =
            serde_json::from_slice(&bytes).map_err(|error| self.foreign(error))?;
        if document.version != VERSION {
            return Err(self.foreign(format!("version {}", document.version)));
        }
        let message = |said: Said| Message { role: said.role.into(), content: said.content };
        let messages = document.messages.into_iter().map(message).collect();
        Ok(Some(Kept { messages, tokens: document.tokens }))
    }

    fn foreign(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(format!("{} holds no conversation: {why}", self.path.display()))
            .hint("name another file with --keep; one that does not exist is made")
    }

    /// Takes over the context of those tokens: how many of them it holds now, and why not all.
    pub fn recover(engine: &mut Engine, tokens: &[u32]) -> Outcome<(usize, Option<String>)> {
        let recovered = match engine.session.recover(Tag::EMPTY.with(tokens)) {
            Ok(recovered) => recovered,
            // The text is there.
            Err(error) if matches!(error.code, Code::BadMagic | Code::Mismatch | Code::Corrupt) => {
                return Ok((0, Some(error.to_string())));
            }
            Err(error) => return Err(error.into()),
        };
        let Some(lost) = recovered.lost else {
            return Ok((tokens.len().min(as_count(recovered.tokens)), None));
        };
        engine.session.truncate(lost)?;
        Ok((as_count(lost), Some("the rest is damaged".to_owned())))
    }

    /// Makes what was said and its context outlive the process.
    pub fn write(&self, engine: &Engine, messages: &[Message], tokens: &[u32]) -> Outcome<()> {
        engine.session.checkpoint(Tag::EMPTY.with(tokens), None)?;
        let said = |message: &Message| Said {
            role: message.role.into(),
            content: message.content.clone(),
        };
        let messages = messages.iter().map(said).collect();
        let document = Document { version: VERSION, messages, tokens: tokens.to_vec() };
        let bytes = serde_json::to_vec(&document)
            .map_err(|error| Failure::new(format!("cannot write the conversation: {error}")))?;
        let fill = |file: &mut dyn std::io::Write| file.write_all(&bytes);
        place::place(&self.path, bytes.len() as u64, || false, fill)?;
        Ok(())
    }
}

fn as_count(tokens: TokenCount) -> usize {
    usize::try_from(tokens.get()).unwrap_or(usize::MAX)
}

impl From<Speaker> for Role {
    fn from(speaker: Speaker) -> Role {
        match speaker {
            Speaker::System => Role::System,
            Speaker::User => Role::User,
            Speaker::Assistant => Role::Assistant,
        }
    }
}

impl From<Role> for Speaker {
    fn from(role: Role) -> Speaker {
        match role {
            Role::System => Speaker::System,
            Role::User => Speaker::User,
            Role::Assistant => Speaker::Assistant,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Outcome<Option<Kept>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk");
        fs::write(&path, text).unwrap();
        Keep::new(&path).read()
    }

    #[test]
    fn what_was_said_is_read_back() {
        let text = r#"{"version":1,"messages":[{"role":"user","content":"a"}],"tokens":[1,2]}"#;
        let messages = vec![Message { role: Role::User, content: "a".to_owned() }];
        assert_eq!(read(text).unwrap(), Some(Kept { messages, tokens: vec![1, 2] }));
        let nowhere = Keep::new(Path::new("/nonexistent/talk"));
        assert_eq!(nowhere.read().unwrap(), None);
        assert_eq!(nowhere.swap(), Path::new("/nonexistent/talk.kv"));
    }

    #[test]
    fn other_files_are_refused() {
        for text in [
            "",
            "hello",
            "{}",
            r#"{"version":2,"messages":[],"tokens":[]}"#,
            r#"{"version":1,"messages":[{"role":"root","content":""}],"tokens":[]}"#,
            r#"{"version":1,"messages":[],"tokens":[-1]}"#,
        ] {
            let failure = read(text).unwrap_err();
            assert!(failure.message.contains("holds no conversation"), "{failure}");
            assert!(failure.hint.unwrap().contains("--keep"));
        }
        let failure = Keep::new(Path::new("/")).read().unwrap_err();
        assert!(failure.message.contains("holds no conversation"), "{failure}");
    }
}
