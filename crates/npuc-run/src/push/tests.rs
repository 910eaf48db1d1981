//! Plans as text, what answers mean, and libraries of every wrong kind.

use std::fs;

use super::libraries::{check, find, runner, version_of};
use super::*;

const SERIAL: &str = "R5 C";

pub(super) fn pushed() -> Pushed {
    Pushed {
        files: vec![("manifest.json".into(), 30), ("graphs/1t8c.ir".into(), 20), ("it's.bin".into(), 10)],
        build_id: Some("v2.51.0.260929181845".into()),
        target: "sm8650".into(),
        chips: vec!["SM8650".into()],
        arch: 75,
    }
}

/// An ELF file for that machine with a text in it.
pub(super) fn elf(machine: u16, text: &str) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0".to_vec();
    bytes.extend(machine.to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

/// A folder as the SDK has it, with that text in the library whose version counts.
pub(super) fn sdk(folder: &Path, text: &str) {
    for (name, machine) in libraries::names(75) {
        let (place, number, text) = match machine {
            Machine::Aarch64 if name == HTP => ("lib/aarch64-android", 183, text),
            Machine::Aarch64 => ("lib/aarch64-android", 183, "libraries"),
            Machine::Hexagon => ("lib/hexagon-v75/unsigned", 164, "libraries"),
        };
        fs::create_dir_all(folder.join(place)).unwrap();
        fs::write(folder.join(place).join(name), elf(number, text)).unwrap();
    }
}

/// The calls of a plan with the lines that check them, without the script's functions.
fn calls(plan: &Plan) -> String {
    let script = plan.script();
    script[script.find("\ncall ").unwrap()..].to_owned()
}

#[test]
fn a_plan_reads_as_a_script() {
    let binary =
        |name: &str, machine, bytes| Binary { path: Path::new("/sdk").join(name), name: name.into(), bytes, machine };
    let runner = binary("npuc", Machine::Aarch64, 5);
    let libraries = [binary(HTP, Machine::Aarch64, 6), binary("libQnnHtpV75Skel.so", Machine::Hexagon, 7)];
    let sources = Sources { bundle: Path::new("/a b"), runner: Some(&runner), libraries: Some(&libraries) };
    let with_libraries = plan(&pushed(), &sources, SERIAL, "/data/x/", false).unwrap();
    let expected = r#"
call '1 of 23: ask whether the phone is there' get-state
is device

call '2 of 23: ask for the phone'\''s chip' shell 'getprop ro.soc.model'
is_chip SM8650

call '3 of 23: make the folders' shell 'mkdir -p /data/x /data/x/bin /data/x/bundle /data/x/bundle/graphs /data/x/dsp /data/x/lib'

call '4 of 23: ask for the free space' shell 'df -Pk /data/x'
has_free 78

call '5 of 23: take the old bundle'\''s manifest away' shell 'rm -f /data/x/bundle/manifest.json'

call '6 of 23: push npuc' push /sdk/npuc /data/x/bin/npuc.part

call '7 of 23: measure npuc' shell 'stat -c %s /data/x/bin/npuc.part'
is 5

call '8 of 23: give npuc its name' shell 'chmod 755 /data/x/bin/npuc.part && mv -f /data/x/bin/npuc.part /data/x/bin/npuc'

call '9 of 23: push libQnnHtp.so' push /sdk/libQnnHtp.so /data/x/lib/libQnnHtp.so.part

call '10 of 23: measure libQnnHtp.so' shell 'stat -c %s /data/x/lib/libQnnHtp.so.part'
is 6

call '11 of 23: give libQnnHtp.so its name' shell 'mv -f /data/x/lib/libQnnHtp.so.part /data/x/lib/libQnnHtp.so'

call '12 of 23: push libQnnHtpV75Skel.so' push /sdk/libQnnHtpV75Skel.so /data/x/dsp/libQnnHtpV75Skel.so.part

call '13 of 23: measure libQnnHtpV75Skel.so' shell 'stat -c %s /data/x/dsp/libQnnHtpV75Skel.so.part'
is 7

call '14 of 23: give libQnnHtpV75Skel.so its name' shell 'mv -f /data/x/dsp/libQnnHtpV75Skel.so.part /data/x/dsp/libQnnHtpV75Skel.so'

call '15 of 23: push 1t8c.ir' push '/a b/graphs/1t8c.ir' /data/x/bundle/graphs/1t8c.ir.part

call '16 of 23: measure 1t8c.ir' shell 'stat -c %s /data/x/bundle/graphs/1t8c.ir.part'
is 20

call '17 of 23: give 1t8c.ir its name' shell 'mv -f /data/x/bundle/graphs/1t8c.ir.part /data/x/bundle/graphs/1t8c.ir'

call '18 of 23: push it'\''s.bin' push '/a b/it'\''s.bin' '/data/x/bundle/it'\''s.bin.part'

call '19 of 23: measure it'\''s.bin' shell 'stat -c %s '\''/data/x/bundle/it'\''\'\'''\''s.bin.part'\'''
is 10

call '20 of 23: give it'\''s.bin its name' shell 'mv -f '\''/data/x/bundle/it'\''\'\'''\''s.bin.part'\'' '\''/data/x/bundle/it'\''\'\'''\''s.bin'\'''

call '21 of 23: push manifest.json' push '/a b/manifest.json' /data/x/bundle/manifest.json.part

call '22 of 23: measure manifest.json' shell 'stat -c %s /data/x/bundle/manifest.json.part'
is 30

call '23 of 23: give manifest.json its name' shell 'mv -f /data/x/bundle/manifest.json.part /data/x/bundle/manifest.json'

printf '%s\n' 'All is there. This starts an answer, which stays in the file log of the phone'\''s folder:' \
"#;
    assert!(calls(&with_libraries).starts_with(expected), "{}", calls(&with_libraries));
    assert_eq!(with_libraries.bytes, 78);

    let sources = Sources { bundle: Path::new("/b"), runner: None, libraries: None };
    for (force, version) in [(false, "is_not_older"), (true, "is_no_version || is_not_older")] {
        let without = plan(&pushed(), &sources, SERIAL, "/data/x", force).unwrap();
        let expected = format!(
            r#"
call '5 of 16: look for Qualcomm'\''s libraries of an earlier push' shell 'ls /data/x/lib/libQnnHtp.so /data/x/lib/libQnnSystem.so /data/x/lib/libQnnHtpV75Stub.so /data/x/dsp/libQnnHtpV75Skel.so'

call '6 of 16: ask for the libraries'\'' version' shell 'grep -aoE '\''v[0-9]+\.[0-9]+\.[0-9]+\.[0-9]{{6,}}'\'' /data/x/lib/libQnnHtp.so | sort -u'
{version} v2.51.0.260929181845

call '7 of 16: take"#
        );
        assert!(calls(&without).contains(&expected), "{}", calls(&without));
    }
}

/// The pushed library for the NPU is found first, after a `;`, and the answer outlives the shell that starts it.
#[test]
fn an_answer_starts_with_the_pushed_libraries() {
    let sources = Sources { bundle: Path::new("/b"), runner: None, libraries: None };
    let plan = plan(&pushed(), &sources, SERIAL, FOLDER, false).unwrap();
    let (_, dsp) = plan.start.split_once("ADSP_LIBRARY_PATH=\"").unwrap();
    let folders: Vec<&str> = dsp.split('"').next().unwrap().split(';').collect();
    assert_eq!((folders[0], folders.len()), ("/data/local/tmp/npuc/dsp", 5));
    assert!(folders.iter().all(|folder| folder.starts_with('/') && !folder.contains(':')));
    assert!(plan.start.contains("NPUC_QNN_LIBRARIES=/data/local/tmp/npuc/lib "));
    assert!(plan.start.contains("LD_LIBRARY_PATH=/data/local/tmp/npuc/lib:/vendor/lib64 "));
    assert!(plan.start.contains("setsid nohup ./bin/npuc ") && plan.start.ends_with("> log 2>&1 < /dev/null &"));
    assert_eq!(plan.start_here(), format!("adb -s 'R5 C' shell '{}'", plan.start));
}

#[test]
fn what_cannot_be_pushed_says_why() {
    let sources = Sources { bundle: Path::new("/b"), runner: None, libraries: None };
    let with = |change: fn(&mut Pushed)| {
        let mut pushed = pushed();
        change(&mut pushed);
        pushed
    };
    for (pushed, serial, to, code, message) in [
        (pushed(), "", FOLDER, Code::BadArgument, "this is no serial number of a phone"),
        (pushed(), "-s", FOLDER, Code::BadArgument, "this is no serial number of a phone"),
        (pushed(), "a\nb", FOLDER, Code::BadArgument, "this is no serial number of a phone"),
        (pushed(), SERIAL, "/", Code::BadArgument, "the phone's folder cannot be this"),
        (pushed(), SERIAL, "sdcard", Code::BadArgument, "the phone's folder cannot be this"),
        (pushed(), SERIAL, "/data/../x", Code::BadArgument, "the phone's folder cannot be this"),
        (pushed(), SERIAL, "/data//x", Code::BadArgument, "the phone's folder cannot be this"),
        (pushed(), SERIAL, "/data/$x", Code::BadArgument, "the phone's folder cannot be this"),
        (with(|p| drop(p.files.remove(0))), SERIAL, FOLDER, Code::BadBundle, "the bundle has no manifest"),
        (
            with(|p| p.files[1].0 = "../x".into()),
            SERIAL,
            FOLDER,
            Code::BadBundle,
            "a file of the bundle has a name that the phone cannot have",
        ),
        (
            with(|p| p.files[1].0 = "a\nb".into()),
            SERIAL,
            FOLDER,
            Code::BadBundle,
            "a file of the bundle has a name that the phone cannot have",
        ),
        (
            with(|p| p.build_id = Some("newest".into())),
            SERIAL,
            FOLDER,
            Code::MissingTool,
            "the bundle does not say which libraries made its context binaries",
        ),
    ] {
        let error = plan(&pushed, &sources, serial, to, false).unwrap_err();
        assert_eq!((error.diagnostics()[0].code, &*error.diagnostics()[0].message), (code, message), "{serial} {to}");
    }
    let unknown = plan(&with(|p| p.build_id = None), &sources, SERIAL, FOLDER, true).unwrap();
    assert!(!calls(&unknown).contains("is_not_older"));
}

#[test]
fn answers_are_held_against_what_is_needed() {
    let version =
        |unknown_is_fine| Answer::Version { need: Version::parse("v2.51.0.260929181845").unwrap(), unknown_is_fine };
    let chip = || Answer::Chip { target: "sm8650".into(), chips: vec!["SM8650".into(), "SM8651".into()] };
    let free = |bytes| Answer::FreeBytes { bytes, folder: "/x".into() };
    let table =
        "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/block/dm-54 112336000 1000 2048 27% /data";
    let size = || Answer::Bytes { bytes: 12, name: "a".into() };
    // The answer, the code, need and have.
    for (answer, text, expected) in [
        (Answer::Any, "whatever", None),
        (Answer::Word("device".into()), "device\r\n", None),
        (Answer::Word("device".into()), "offline", Some((Code::ToolFailed, "device", "offline"))),
        (chip(), "SM8650\n", None),
        (chip(), "SM8651", None),
        (chip(), "SM8650P", None),
        (chip(), "SM8650-AC", None),
        (chip(), "SM86501", Some((Code::Misfit, "SM8650 or SM8651 (sm8650)", "SM86501"))),
        (chip(), "SM8550", Some((Code::Misfit, "SM8650 or SM8651 (sm8650)", "SM8550"))),
        (chip(), "\n", Some((Code::Misfit, "SM8650 or SM8651 (sm8650)", "no ro.soc.model"))),
        (free(2048 * 1024), table, None),
        (free(2048 * 1024 + 1), table, Some((Code::ByteLimit, "2097153 bytes", "2097152 bytes free"))),
        (free(1), "", Some((Code::ByteLimit, "1 bytes", "no figure from df"))),
        (free(1), "df: /x: No such file", Some((Code::ByteLimit, "1 bytes", "no figure from df"))),
        (size(), "12\n", None),
        (size(), "11", Some((Code::ToolFailed, "12 bytes", "11"))),
        (version(false), "v2.51.0.260929181845\r\n", None),
        (version(false), "v2.51.0.260929", None),
        (version(false), "v3.0.0.250101", None),
        (version(true), "v2.50.1.270101", Some((Code::MissingTool, "v2.51.0.260929181845 or later", "v2.50.1.270101"))),
        (
            version(false),
            "v2.51.0.260928",
            Some((Code::MissingTool, "v2.51.0.260929181845 or later", "v2.51.0.260928")),
        ),
        (version(false), "", Some((Code::MissingTool, "v2.51.0.260929181845 or later", "none in the file"))),
        (version(true), "", None),
        (version(true), "v1.2.3.250101\nv1.2.4.250101", None),
    ] {
        let fault = answer.fault(text);
        let have = fault.as_ref().map(|f| (f.code, f.need.as_deref().unwrap(), f.have.as_deref().unwrap()));
        assert_eq!(have, expected, "{answer:?} {text}");
    }
}

#[test]
fn versions_are_read_and_compared() {
    for (text, shown) in [
        ("v2.51.0.260929181845", Some("v2.51.0.260929181845")),
        ("2.31.0.250130151446_114721", Some("v2.31.0.250130151446")),
        ("v2.51.0", None),
        ("v2.51.0.2609", None),
        ("v2.51.0.260929.1", None),
        ("v2.51.x.260929", None),
        ("v99999999999.0.0.260929", None),
        ("", None),
    ] {
        assert_eq!(Version::parse(text).map(|version| version.to_string()).as_deref(), shown, "{text}");
    }
    for (a, b, older) in [
        ("v2.9.0.260929", "v2.10.0.250101", true),
        ("v2.10.0.250101", "v2.9.0.260929", false),
        ("v2.51.0.260929", "v2.51.0.260929181845", false),
        ("v2.51.0.260929181845", "v2.51.0.260929", false),
        ("v2.51.0.260929181844", "v2.51.0.260929181845", true),
    ] {
        let [first, second] = [a, b].map(|text| Version::parse(text).unwrap());
        assert_eq!(first.is_older_than(&second), older, "{a} {b}");
    }
}

/// The bytes of a file, around every place where reading in pieces could cut a version or what stands before it.
#[test]
fn a_version_is_found_anywhere_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lib");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        version_of(&path).unwrap().map(|version| version.to_string())
    };
    let version = "v2.51.0.260929181845";
    let near = (0..26).map(|back| 5 * back).chain([1, 19, 20, 21, 63, 64, 66]);
    for at in near.map(|back| (1 << 20) - back).chain([0, 1, 70, (1 << 20) + 3]) {
        let mut bytes = vec![0; at];
        bytes.extend(version.as_bytes());
        assert_eq!(read(&bytes).as_deref(), Some(version), "{at}");
        bytes.extend(b".\0hexnn_ver_v2.51.0.260929181845.\0");
        bytes.resize((1 << 20) + 300, 0);
        assert_eq!(read(&bytes).as_deref(), Some(version), "{at}");
        // A word that ends in v is none, wherever pieces begin.
        let mut word = vec![0; at];
        word.extend(format!("re{version}").as_bytes());
        word.resize((1 << 20) + 300, 0);
        assert_eq!(read(&word), None, "{at}");
    }
    assert_eq!(read(b"v2.51.0.260929181845\0v2.50.0.260929181845"), None, "two versions are no version");
    assert_eq!(read(b"v2.51.0"), None);
}

/// What was done to a good folder, and what is said of it.
struct Sdk {
    /// A file of `lib`, its machine and a text in it; absent where it was removed.
    change: Option<(&'static str, Option<(u16, &'static str)>)>,
    /// What is wrong with the files.
    faults: &'static [&'static str],
    /// What is wrong with their versions, without and with `--force`.
    checked: [Option<&'static str>; 2],
}

const HTP_FILE: &str = "aarch64-android/libQnnHtp.so";
const SKEL_FILE: &str = "hexagon-v75/unsigned/libQnnHtpV75Skel.so";
const OLDER: Option<&str> = Some("the libraries are older than those that made the context binaries");
const DIFFERENT: Option<&str> = Some("the libraries are of different versions");
const SDKS: &[Sdk] = &[
    Sdk { change: None, faults: &[], checked: [None, None] },
    Sdk {
        change: Some((HTP_FILE, Some((62, "")))),
        faults: &["UnknownFormat an ELF file for aarch64; one for x86-64"],
        checked: [None, None],
    },
    Sdk {
        change: Some((SKEL_FILE, Some((183, "")))),
        faults: &["UnknownFormat an ELF file for Hexagon; one for aarch64"],
        checked: [None, None],
    },
    Sdk {
        change: Some((HTP_FILE, None)),
        faults: &["MissingTool libQnnHtp.so; the file of lib/aarch64-android of Qualcomm's SDK (QAIRT)"],
        checked: [None, None],
    },
    Sdk {
        change: Some((SKEL_FILE, None)),
        faults: &["MissingTool libQnnHtpV75Skel.so; the file of lib/hexagon-v75/unsigned of Qualcomm's SDK (QAIRT)"],
        checked: [None, None],
    },
    Sdk { change: Some((HTP_FILE, Some((183, " v2.50.0.250101 ")))), faults: &[], checked: [OLDER, OLDER] },
    Sdk {
        change: Some((HTP_FILE, Some((183, "")))),
        faults: &[],
        checked: [Some("the libraries' version is not known"), None],
    },
    Sdk { change: Some((SKEL_FILE, Some((164, " v2.52.0.260929 ")))), faults: &[], checked: [DIFFERENT, DIFFERENT] },
];

#[test]
fn libraries_are_found_and_checked() {
    let need = Version::parse("v2.51.0.260929181845").unwrap();
    for &Sdk { change, faults, checked } in SDKS {
        let folder = tempfile::tempdir().unwrap();
        sdk(folder.path(), " v2.51.0.260929181845 ");
        if let Some((name, content)) = change {
            let path = folder.path().join("lib").join(name);
            match content {
                Some((machine, text)) => fs::write(path, elf(machine, text)).unwrap(),
                None => fs::remove_file(path).unwrap(),
            }
        }
        let told = |fault: &Diagnostic| {
            let words = [fault.subject.as_deref(), fault.need.as_deref(), fault.have.as_deref()];
            format!("{:?} {}", fault.code, words.into_iter().flatten().collect::<Vec<_>>().join("; "))
        };
        let found = find(folder.path(), 75);
        let have: Vec<String> =
            found.as_ref().err().into_iter().flat_map(|error| error.diagnostics()).map(told).collect();
        assert_eq!(have, faults);
        let Ok(found) = found else { continue };
        for (force, expected) in [false, true].into_iter().zip(checked) {
            let error = check(&found, Some(&need), force).err();
            assert_eq!(error.as_ref().map(|error| &*error.diagnostics()[0].message), expected, "{force}");
        }
        assert!(check(&found, None, false).is_err());
    }
}

/// All in one folder, or the folder `lib` of the SDK; a program is told from a library for another processor.
#[test]
fn libraries_may_lie_in_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    sdk(folder.path(), "");
    let in_sdk = find(folder.path(), 75).unwrap();
    let flat = folder.path().join("flat");
    fs::create_dir(&flat).unwrap();
    for library in &in_sdk {
        fs::copy(&library.path, flat.join(&library.name)).unwrap();
    }
    for place in [folder.path().join("lib"), flat] {
        let found = find(&place, 75).unwrap();
        let same = |binary: &Binary| (binary.name.clone(), binary.bytes, binary.machine);
        assert!(found.iter().map(same).eq(in_sdk.iter().map(same)), "{}", place.display());
    }
    let none = find(&folder.path().join("none"), 75).unwrap_err();
    assert_eq!(none.diagnostics().len(), 4);
    assert!(none.diagnostics()[3].help[0].starts_with("get the SDK from Qualcomm"));
    let program = folder.path().join("npuc-android");
    for (bytes, code) in
        [(elf(183, ""), None), (elf(62, ""), Some(Code::UnknownFormat)), (b"#!".to_vec(), Some(Code::UnknownFormat))]
    {
        fs::write(&program, bytes).unwrap();
        assert_eq!(runner(&program).err().map(|error| error.diagnostics()[0].code), code);
    }
}
