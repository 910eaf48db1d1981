//! Speech made from text by espeak-ng, a synthesiser: sound whose words are known, without a recording.
//!
//! The program, its voices and what computes the sound are pinned, so that a text always gives the same bytes. Libraries that
//! only play sound, which is not done here, are taken from the machine where it has them.

use std::ffi::OsString;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::debian::{self, Package};
use crate::{Result, cache, fault};

/// Words in a minute that espeak-ng speaks; it moves others to the nearest without a word (source: its manual, option `-s`).
const SPEEDS: RangeInclusive<u32> = 80..=450;

/// The longest path of a folder with voices, in bytes: espeak-ng takes the machine's own voices where one is longer (source: its
/// buffer of 160 for the path with `/espeak-ng-data`).
const LONGEST_PATH: usize = 144;

/// The program, its library, what stretches its sound, and its voices.
const OWN: usize = 4;

/// espeak-ng, and the libraries that it is linked with as far as a machine with apt may lack them: each with the name of the
/// library by which a machine that has it needs no package, or "" for what is always taken as pinned, the first [`OWN`].
const PACKAGES: [(Package, &str); 23] = [
    (
        Package::bookworm(
            "espeak-ng",
            "1.51+dfsg-10+deb12u2",
            "a11396a690f85f55e6e6b2965505237ddf3dc95c51936aa61de936f1ccf8f4d0",
        ),
        "",
    ),
    (
        Package::bookworm(
            "libespeak-ng1",
            "1.51+dfsg-10+deb12u2",
            "2b127a95b50d92cbd7a615968d2ac1566e1cbc87e27bcda0c2894afb2407c6d2",
        ),
        "",
    ),
    (
        Package::bookworm("libsonic0", "0.2.0-12", "9d60de6918ace0b10e3e4e95421befd08aaf03b5b2a3d71ceb799e0cf259916f"),
        "",
    ),
    (
        Package::bookworm(
            "espeak-ng-data",
            "1.51+dfsg-10+deb12u2",
            "573f5661c6a5adcf949018baad158c4c773bf5579390ee5235a890f1cd694106",
        ),
        "",
    ),
    (
        Package::bookworm(
            "libasound2",
            "1.2.8-1+b1",
            "44c77b076a7b11ae99712439022d822245b1994c435da564ebd320bb676faf4c",
        ),
        "libasound.so.2",
    ),
    (
        Package::bookworm(
            "libasyncns0",
            "0.8-6+b3",
            "cadaff99f4178b1f580331045621b363abaaefc994e78eecba1857774a3cead2",
        ),
        "libasyncns.so.0",
    ),
    debian::LIBBSD0,
    (
        Package::bookworm(
            "libdbus-1-3",
            "1.14.10-1~deb12u1",
            "18ee0ce5fab9f7b671e87da1e9fa18660e36e04a3402f24bdb8635e0ba1d35f6",
        ),
        "libdbus-1.so.3",
    ),
    (
        Package::bookworm(
            "libflac12",
            "1.4.2+ds-2",
            "4d8431c274eef13ec9ee2c0bf988c34b4342367dec053b7f69a432525be5b1fe",
        ),
        "libFLAC.so.12",
    ),
    (
        Package::bookworm("libmp3lame0", "3.100-6", "b1292c749172e7623547ecf684da57d3ec6ca22109f08b11bbb9e6be6e6beb95"),
        "libmp3lame.so.0",
    ),
    (
        Package::bookworm(
            "libmpg123-0",
            "1.31.2-1+deb12u1",
            "a10ad0d59995b859797a5f20d2833672051d0b2c7dab4c71f2e79258b2e3f631",
        ),
        "libmpg123.so.0",
    ),
    (
        Package::bookworm("libogg0", "1.3.5-3", "f67acb0477aed0354f411172e37af338f3ac6bd4f3766134a2cf5539884b5a28"),
        "libogg.so.0",
    ),
    (
        Package::bookworm("libopus0", "1.3.1-3", "c172e212f9039e741916aa8e12f3670d1e049dc0c16685325641288c2d83faa7"),
        "libopus.so.0",
    ),
    (
        Package::bookworm("libpcaudio0", "1.2-2", "5309759e4d129c7d9a601240cc6e62820ecfa86a1a98e207992ffa6a572dbcd2"),
        "libpcaudio.so.0",
    ),
    (
        Package::bookworm(
            "libpulse0",
            "16.1+dfsg1-2+b1",
            "7b2c5403cb726312219aad678becc6d6adcee1d8694fdffce0b6ec15ae010831",
        ),
        "libpulse-simple.so.0",
    ),
    (
        Package::bookworm(
            "libsndfile1",
            "1.2.0-1+deb12u1",
            "02dc3f08fe8476e82e005f412e3b7289ff641180f33a9be8073f4bde61c85e8e",
        ),
        "libsndfile.so.1",
    ),
    (
        Package::bookworm("libvorbis0a", "1.3.7-1", "01c14f9d1109650077a4c5c337c285476a6932d4d448f5a190c2b845724dbf21"),
        "libvorbis.so.0",
    ),
    (
        Package::bookworm(
            "libvorbisenc2",
            "1.3.7-1",
            "75dd4d6f904c7db82f5112e60d8efea9e81dfedf94e970c5da7af2b3d81643c0",
        ),
        "libvorbisenc.so.2",
    ),
    (
        Package::bookworm(
            "libx11-6",
            "2:1.8.4-2+deb12u2",
            "d88c973e79fd9b65838d77624142952757e47a6eb1a58602acf0911cf35989f4",
        ),
        "libX11.so.6",
    ),
    debian::LIBX11_XCB1,
    debian::LIBXAU6,
    debian::LIBXCB1,
    debian::LIBXDMCP6,
];

/// Where packages have their libraries.
const LIBRARIES: [&str; 3] =
    ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio"];

/// The sound file while it is made.
const SPOKEN: &str = "spoken.wav";

/// espeak-ng, unpacked in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Espeak {
    program: PathBuf,
    /// The folder that holds its folder of voices.
    voices: PathBuf,
    /// The folders of the unpacked packages' libraries.
    libraries: OsString,
}

/// espeak-ng in the user's cache, fetched if it is not there. `say` is told of failed attempts.
///
/// Errors: the user has no cache, and what [`debian::install`] finds.
pub fn espeak(say: &mut dyn FnMut(&str)) -> Result<Espeak> {
    installed(&cache()?, &debian::lacking(&PACKAGES), say)
}

/// The same of `packages`, which begin with espeak-ng's own.
fn installed(cache: &Path, packages: &[Package], say: &mut dyn FnMut(&str)) -> Result<Espeak> {
    let folders = debian::install(cache, packages, say)?;
    let [program, _, _, voices, ..] = folders.as_slice() else {
        return Err(fault(format!("espeak-ng is {OWN} packages at least, and {} were fetched", folders.len())));
    };
    let voices = voices.join(LIBRARIES[0]);
    if voices.as_os_str().len() > LONGEST_PATH {
        let why = "longer than espeak-ng can take; set XDG_CACHE_HOME to a shorter one";
        return Err(fault(format!("the path {} is {why}", voices.display())));
    }
    let libraries = folders.iter().flat_map(|folder| LIBRARIES.map(|library| folder.join(library)));
    let libraries = std::env::join_paths(libraries.filter(|folder| folder.is_dir()));
    Ok(Espeak {
        program: program.join("usr/bin/espeak-ng"),
        voices,
        libraries: libraries.map_err(|e| fault(format!("the cache's path cannot be searched for libraries: {e}")))?,
    })
}

/// Speaks `text` into the WAV file `to`: one channel of 16 bits at 22,050 Hz. `voice` is a name that espeak-ng knows, such as
/// `en-us` or `en-gb+f3`, of which it takes the language where it knows no more; phonemes in `[[` and `]]` are spoken as such. The same arguments give the same bytes. espeak-ng is
/// fetched if the user's cache does not have it, and `say` is told of failed attempts.
///
/// Errors: a speed outside 80 to 450 words in a minute, a voice that is not known, a text without anything to speak, a file
/// that cannot be written, and all that [`espeak`] finds. After an error `to` is as it was.
pub fn speak(text: &str, voice: &str, words_per_minute: u32, to: &Path, say: &mut dyn FnMut(&str)) -> Result<()> {
    espeak(say)?.speak(text, voice, words_per_minute, to)
}

impl Espeak {
    /// Speaks as [`speak`] does.
    pub fn speak(&self, text: &str, voice: &str, words_per_minute: u32, to: &Path) -> Result<()> {
        if !SPEEDS.contains(&words_per_minute) {
            let (slowest, fastest) = (SPEEDS.start(), SPEEDS.end());
            return Err(fault(format!(
                "espeak-ng speaks {slowest} to {fastest} words in a minute, not {words_per_minute}"
            )));
        }
        let beside = match to.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) | None => Path::new("."),
        };
        let folder = tempfile::tempdir_in(beside).map_err(|e| fault(format!("cannot write {}: {e}", to.display())))?;
        let made = folder.path().join(SPOKEN);
        let said = self.run(text, voice, words_per_minute, folder.path());
        let said = said.map_err(|e| fault(format!("cannot start {}: {e}", self.program.display())))?;
        // It ends well without a file where there was nothing to speak.
        if !said.status.success() || !made.is_file() {
            let text = String::from_utf8_lossy(&said.stderr);
            let why = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it spoke nothing");
            return Err(fault(format!("espeak-ng made no speech with the voice {voice:?} ({}): {why}", said.status)));
        }
        std::fs::rename(&made, to).map_err(|e| fault(format!("cannot write {}: {e}", to.display())))
    }

    /// Runs the program in `folder` with the text on its standard input. It cuts long paths of sound files, so it is given a name.
    fn run(
        &self,
        text: &str,
        voice: &str,
        words_per_minute: u32,
        folder: &Path,
    ) -> std::io::Result<std::process::Output> {
        let mut path = OsString::from("--path=");
        path.push(&self.voices);
        let mut command = Command::new(&self.program);
        let speed = words_per_minute.to_string();
        command.arg(path).args(["-v", voice, "-s", &speed, "-b", "1", "--stdin", "-w", SPOKEN]).current_dir(folder);
        command.env("LD_LIBRARY_PATH", &self.libraries).env_remove("ESPEAK_DATA_PATH").env("LC_ALL", "C");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        // What it did not read, because it ended with a message, is told by that message.
        let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(text.as_bytes()));
        let output = child.wait_with_output()?;
        if output.status.success() {
            written?;
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

    #[test]
    fn only_what_makes_the_sound_is_always_pinned() {
        let own: Vec<&str> =
            PACKAGES.iter().filter(|(_, library)| library.is_empty()).map(|(own, _)| own.name).collect();
        assert_eq!(own, ["espeak-ng", "libespeak-ng1", "libsonic0", "espeak-ng-data"]);
        assert!(PACKAGES[..OWN].iter().all(|(package, library)| library.is_empty() && package.suite == "bookworm"));
    }

    /// A cache that holds a program of ours instead of espeak-ng.
    #[cfg(unix)]
    fn stand_in(cache: &Path, script: &str) -> Espeak {
        use std::os::unix::fs::PermissionsExt;
        let packages: Vec<Package> = PACKAGES[..OWN].iter().map(|(package, _)| *package).collect();
        for package in &packages {
            fs::create_dir_all(cache.join(&package.sha256[..16]).join("all/usr/lib/x86_64-linux-gnu")).unwrap();
        }
        let bin = cache.join(&packages[0].sha256[..16]).join("all/usr/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("espeak-ng"), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(bin.join("espeak-ng"), fs::Permissions::from_mode(0o755)).unwrap();
        installed(cache, &packages, &mut |line| panic!("{line}")).unwrap()
    }

    #[test]
    #[cfg(unix)]
    fn a_call_names_everything_and_writes_the_whole_file_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to.wav");
        let echo = stand_in(&folder.path().join("a"), r#"{ echo "$LD_LIBRARY_PATH"; echo "$@"; cat; } > spoken.wav"#);
        echo.speak("Good day.", "en-us", 150, &to).unwrap();
        let voices = echo.voices.display();
        let [program, library, sonic] = ["a11396a690f85f55", "2b127a95b50d92cb", "9d60de6918ace0b1"]
            .map(|place| folder.path().join(format!("a/{place}/all/usr/lib/x86_64-linux-gnu")).display().to_string());
        let expected = format!(
            "{program}:{library}:{sonic}:{voices}\n\
             --path={voices} -v en-us -s 150 -b 1 --stdin -w spoken.wav\nGood day."
        );
        assert_eq!(fs::read_to_string(&to).unwrap(), expected);

        let refuses = stand_in(&folder.path().join("b"), "echo sound > spoken.wav; echo no such voice >&2; exit 1");
        let silent = stand_in(&folder.path().join("c"), "exit 0");
        let nowhere = folder.path().join("none/to.wav");
        for (espeak, speed, to, expected) in [
            (&refuses, 150, &to, "made no speech with the voice \"en\" (exit status: 1): no such voice"),
            (&silent, 150, &to, "(exit status: 0): it spoke nothing"),
            (&echo, 79, &to, "espeak-ng speaks 80 to 450 words in a minute, not 79"),
            (&echo, 451, &to, "not 451"),
            (&echo, 450, &nowhere, "cannot write "),
        ] {
            let told = espeak.speak("Good day.", "en", speed, to).unwrap_err().to_string();
            assert!(told.contains(expected), "{told}");
        }
        assert!(fs::read_to_string(&to).unwrap().contains("150"), "a failed call leaves the file as it was");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "nothing else is left");
    }

    #[test]
    fn a_cache_whose_path_is_too_long_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("long".repeat(40));
        let packages: Vec<Package> = PACKAGES[..OWN].iter().map(|(package, _)| *package).collect();
        for package in &packages {
            fs::create_dir_all(cache.join(&package.sha256[..16]).join("all")).unwrap();
        }
        let told = installed(&cache, &packages, &mut |line| panic!("{line}")).unwrap_err();
        assert!(told.to_string().contains("longer than espeak-ng can take"), "{told}");
    }

    /// Fetches the packages; with `NPUC_ESPEAK_ALL` those too that this machine has.
    #[test]
    #[ignore = "fetches espeak-ng"]
    fn the_same_text_is_the_same_sound() {
        let all = PACKAGES.map(|(package, _)| package);
        let packages =
            if std::env::var_os("NPUC_ESPEAK_ALL").is_some() { all.to_vec() } else { debian::lacking(&PACKAGES) };
        let espeak = installed(&cache().unwrap(), &packages, &mut |line| println!("{line}")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let sound = |name: &str, text: &str, speed| {
            let file = folder.path().join(name);
            espeak.speak(text, "en-us", speed, &file).unwrap();
            fs::read(file).unwrap()
        };
        let first = sound("a.wav", "Good day. It is 9 o'clock, café.", 150);
        assert_eq!(&first[..4], b"RIFF");
        assert_eq!(first[22..28], [1, 0, 0x22, 0x56, 0, 0], "one channel, 22,050 Hz");
        assert_eq!(first, sound("b.wav", "Good day. It is 9 o'clock, café.", 150));
        assert!(sound("c.wav", "Good day. It is 9 o'clock, café.", 300).len() < first.len());
        let told = espeak.speak("Good day.", "nosuch", 150, &folder.path().join("d.wav")).unwrap_err();
        assert!(told.to_string().contains("voice does not exist"), "{told}");
        let told = espeak.speak("", "en-us", 150, &folder.path().join("d.wav")).unwrap_err();
        assert!(told.to_string().contains("it spoke nothing"), "{told}");
    }
}
