//! The languages that Whisper knows, by code and English name (openai/whisper, `tokenizer.py`).
//!
//! A model knows those that its tokenizer has a token `<|code|>` for: the last of them came with large-v3.

use std::fmt;

use npuc::{Code, Diagnostic, Result};
use serde::{Serialize, Serializer};

/// Codes and names.
#[rustfmt::skip]
const LANGUAGES: [(&str, &str); 100] = [
    ("en", "english"), ("zh", "chinese"), ("de", "german"), ("es", "spanish"), ("ru", "russian"), ("ko", "korean"),
    ("fr", "french"), ("ja", "japanese"), ("pt", "portuguese"), ("tr", "turkish"), ("pl", "polish"),
    ("ca", "catalan"), ("nl", "dutch"), ("ar", "arabic"), ("sv", "swedish"), ("it", "italian"), ("id", "indonesian"),
    ("hi", "hindi"), ("fi", "finnish"), ("vi", "vietnamese"), ("he", "hebrew"), ("uk", "ukrainian"), ("el", "greek"),
    ("ms", "malay"), ("cs", "czech"), ("ro", "romanian"), ("da", "danish"), ("hu", "hungarian"), ("ta", "tamil"),
    ("no", "norwegian"), ("th", "thai"), ("ur", "urdu"), ("hr", "croatian"), ("bg", "bulgarian"),
    ("lt", "lithuanian"), ("la", "latin"), ("mi", "maori"), ("ml", "malayalam"), ("cy", "welsh"), ("sk", "slovak"),
    ("te", "telugu"), ("fa", "persian"), ("lv", "latvian"), ("bn", "bengali"), ("sr", "serbian"),
    ("az", "azerbaijani"), ("sl", "slovenian"), ("kn", "kannada"), ("et", "estonian"), ("mk", "macedonian"),
    ("br", "breton"), ("eu", "basque"), ("is", "icelandic"), ("hy", "armenian"), ("ne", "nepali"),
    ("mn", "mongolian"), ("bs", "bosnian"), ("kk", "kazakh"), ("sq", "albanian"), ("sw", "swahili"),
    ("gl", "galician"), ("mr", "marathi"), ("pa", "punjabi"), ("si", "sinhala"), ("km", "khmer"), ("sn", "shona"),
    ("yo", "yoruba"), ("so", "somali"), ("af", "afrikaans"), ("oc", "occitan"), ("ka", "georgian"),
    ("be", "belarusian"), ("tg", "tajik"), ("sd", "sindhi"), ("gu", "gujarati"), ("am", "amharic"), ("yi", "yiddish"),
    ("lo", "lao"), ("uz", "uzbek"), ("fo", "faroese"), ("ht", "haitian creole"), ("ps", "pashto"), ("tk", "turkmen"),
    ("nn", "nynorsk"), ("mt", "maltese"), ("sa", "sanskrit"), ("lb", "luxembourgish"), ("my", "myanmar"),
    ("bo", "tibetan"), ("tl", "tagalog"), ("mg", "malagasy"), ("as", "assamese"), ("tt", "tatar"),
    ("haw", "hawaiian"), ("ln", "lingala"), ("ha", "hausa"), ("ba", "bashkir"), ("jw", "javanese"),
    ("su", "sundanese"), ("yue", "cantonese"),
];

/// Other names, and the code that each means.
#[rustfmt::skip]
const OTHER_NAMES: [(&str, &str); 12] = [
    ("burmese", "my"), ("valencian", "ca"), ("flemish", "nl"), ("haitian", "ht"), ("letzeburgesch", "lb"),
    ("pushto", "ps"), ("panjabi", "pa"), ("moldavian", "ro"), ("moldovan", "ro"), ("sinhalese", "si"),
    ("castilian", "es"), ("mandarin", "zh"),
];

/// A language that some Whisper model knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Language {
    code: &'static str,
    name: &'static str,
}

impl Language {
    /// English, the one that English-only models know.
    pub const ENGLISH: Language = Language { code: "en", name: "english" };

    /// Every language, in the order of the reference.
    pub fn all() -> impl Iterator<Item = Language> {
        LANGUAGES.into_iter().map(|(code, name)| Language { code, name })
    }

    /// The language of a code or English name in any case, e.g. `de`, `German`, `Flemish`.
    ///
    /// # Errors
    /// `bad-argument`, listing all that are known.
    pub fn parse(text: &str) -> Result<Language> {
        let wanted = text.trim().to_lowercase();
        let code = OTHER_NAMES.into_iter().find(|(name, _)| *name == wanted).map_or(wanted.as_str(), |(_, code)| code);
        Language::all().find(|language| [language.code, language.name].contains(&code)).ok_or_else(|| {
            Diagnostic::error(Code::BadArgument, "Whisper does not know this language")
                .need(format_args!("a code or name of {}", listed(Language::all())))
                .have(format_args!("{text:?}"))
                .into()
        })
    }

    /// The code, e.g. `de` or `haw`.
    pub fn code(self) -> &'static str {
        self.code
    }

    /// The English name in small letters.
    pub fn name(self) -> &'static str {
        self.name
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code)
    }
}

impl Serialize for Language {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code)
    }
}

/// Languages for a message.
pub(super) fn listed(languages: impl Iterator<Item = Language>) -> String {
    languages.map(|language| format!("{} ({})", language.code, language.name)).collect::<Vec<_>>().join(", ")
}
