//! Step profiles of models, kept in the cache directory: the first eviction of a model makes one,
//! and every later run packs with the same.

use crate::commands::Console;
use crate::failure::Outcome;
use crate::paths::{self, CacheDir};
use crate::place;
use mzcache::codec::{Steps, StepsUse, codec};
use mzcache::infer::{Model, Session};
use mzcache::kernel::Kernels;
use mzcache::units::{CodecId, KvShape};
use std::fs;
use std::path::{Path, PathBuf};

/// Where one model's steps are, and what was found there.
pub struct StepsFile {
    path: PathBuf,
    shape: KvShape,
    bytes: Option<Vec<u8>>,
}

impl StepsFile {
    /// Reads the file if there is one and the codec uses it. A damaged one is a note, and made
    /// anew.
    pub fn read(
        cache: &CacheDir,
        file: &Path,
        model: &Model,
        id: CodecId,
        console: &mut Console<'_>,
    ) -> Self {
        let shape = model.shape.kv();
        let path = Self::path(cache, file);
        if codec(id).properties().steps == StepsUse::Ignored {
            return StepsFile { path, shape, bytes: None };
        }
        let mut memory = vec![0.0; Steps::values(&shape)];
        let bytes = fs::read(&path).ok().filter(|bytes| {
            let parsed = Steps::parse(&Kernels::portable(), shape, bytes, &mut memory);
            if let Err(error) = &parsed {
                console.note(&format!("{}: {error}; it is made anew", path.display()));
            }
            parsed.is_ok()
        });
        StepsFile { path, shape, bytes }
    }

    /// A model is known by its name and size.
    fn path(cache: &CacheDir, model: &Path) -> PathBuf {
        let bytes = fs::metadata(model).map_or(0, |file| file.len());
        let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        cache.root().join("steps").join(format!("{name}-{bytes}.bin"))
    }

    /// What to open a session with.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.bytes.as_deref()
    }

    /// Writes what a session has made, once.
    pub fn keep(&mut self, session: &Session) -> Outcome<()> {
        let (None, Some(steps)) = (&self.bytes, session.runtime().steps()) else {
            return Ok(());
        };
        let mut bytes = vec![0; Steps::serialised_bytes(&self.shape)];
        steps.write(&mut bytes)?;
        paths::create(self.path.parent().unwrap_or(Path::new(".")))?;
        let length = bytes.len() as u64;
        place::place(&self.path, length, || false, |file| file.write_all(&bytes))?;
        self.bytes = Some(bytes);
        Ok(())
    }
}
