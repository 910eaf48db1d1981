//! A plan as a script for a POSIX shell, which makes the same calls and holds their answers against the same needs.

use std::fmt::Write;

use npuc::back::shell::{comment, quoted};

use super::Plan;

impl Plan {
    /// The script. It stops at the first step that goes wrong and says which it was.
    pub fn script(&self) -> String {
        let mut text = HEAD.replace("@target@", &comment(&self.target)).replace("@serial@", &quoted(&self.serial));
        for (index, step) in self.steps.iter().enumerate() {
            let what = format!("{} of {}: {}", index + 1, self.steps.len(), step.what);
            let words: Vec<String> = [&what].into_iter().chain(&step.arguments).map(|word| quoted(word)).collect();
            // Writing to a text cannot fail.
            let _ = writeln!(text, "\ncall {}", words.join(" "));
            if let Some(line) = step.answer.script() {
                let _ = writeln!(text, "{line}");
            }
        }
        let words = ["All is there. This starts an answer, which stays in the file log of the phone's folder:"];
        let words: Vec<String> = words.iter().map(|word| quoted(word)).chain([quoted(&self.start_here())]).collect();
        let _ = writeln!(text, "\nprintf '%s\\n' {}", words.join(" \\\n    "));
        text
    }
}

const HEAD: &str = r#"#!/bin/sh
# Puts a bundle for @target@ on a phone, with adb of Android's platform-tools.
# npuc wrote it, and `npuc push` makes the same calls. ADB names another adb, SERIAL another phone.
#
# Each file gets its name when its size is right, the manifest is the last of them, and the first step that fails ends
# the script. It was never tried with a phone, only with a stand-in for adb.
set -eu

adb=${ADB:-adb}
[ -n "${SERIAL:-}" ] || SERIAL=@serial@

# call STEP ARGUMENT...: makes a call of adb and keeps its answer.
call() {
    step=$1
    shift
    printf '%s\n' "$step"
    status=0
    answer=$("$adb" -s "$SERIAL" "$@" </dev/null) || status=$?
    answer=$(printf '%s' "$answer" | tr -d '\r')
    [ "$status" -eq 0 ] || refuse "adb ended with status $status"
}

# refuse REASON: ends the script.
refuse() {
    printf '%s\n' "push.sh: step $step: $1" "  adb said: $answer" >&2
    exit 1
}

# is WORD: the answer is this word.
is() {
    [ "$answer" = "$1" ] || refuse "need $1"
}

# is_chip CHIP...: the answer is one of these, or a variant of one.
is_chip() {
    for chip in "$@"; do
        case $answer in
        "$chip" | "$chip"[!0-9]*) return ;;
        esac
    done
    refuse "the phone has another chip than $*"
}

# has_free BYTES: the table of df -Pk has at least so many bytes free.
has_free() {
    free=$(printf '%s\n' "$answer" | awk 'END { print $4 }')
    case $free in
    '' | *[!0-9]*) refuse "need $1 bytes, and df gave no figure" ;;
    esac
    [ "$((free * 1024))" -ge "$1" ] || refuse "need $1 bytes, and $((free * 1024)) are free"
}

# is_no_version: the answer is not one version.
is_no_version() {
    count=$(printf '%s\n' "$answer" | grep -cxE 'v[0-9]+\.[0-9]+\.[0-9]+\.[0-9]{6,}' || true)
    [ "$count" -ne 1 ]
}

# is_not_older VERSION: the answer is one version, and libraries of it know what those of VERSION do. The last parts are
# times, which are compared as far as both go.
is_not_older() {
    printf '%s\n%s\n' "$1" "$answer" | awk -F '[v.]' '
        NR == 1 { for (i = 2; i <= 5; i++) need[i] = $i; next }
        NR > 2 || NF != 5 { old = 1; exit }
        {
            for (i = 2; i < 5; i++) if ($i + 0 != need[i] + 0) { old = $i + 0 < need[i] + 0; exit }
            n = length($5) < length(need[5]) ? length($5) : length(need[5])
            old = (substr($5, 1, n) "") < (substr(need[5], 1, n) "")
        }
        END { exit old || NR < 2 }' || refuse "need libraries of $1 or later"
}
"#;
