//! Qualcomm's libraries in this process: found in a folder, loaded, their versions checked, their functions at hand.
//!
//! They can crash on what they do not understand, so only the worker process loads them.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::mem::{ManuallyDrop, size_of, transmute_copy};
use std::path::Path;
use std::ptr;

use npuc::{Code, Diagnostic, Result};
use serde::{Deserialize, Serialize};

use super::abi::{self, Configs, Event, Handle, Operation, Provider, Status, SystemProvider, Tensor};

/// The file of the HTP back end.
pub const HTP: &str = "libQnnHtp.so";
/// The file that reads context binaries.
pub const SYSTEM: &str = "libQnnSystem.so";

/// The major version of the core interface; others have other layouts.
const CORE: u32 = 2;
/// The HTP back end's interface from which on a device's configuration is laid out as npuc writes it; 5.43 and older read
/// another field for the chip, silently.
const BACK_END: [u32; 2] = [5, 47];
/// The interface that reads context binaries, of which 1.15 was tried.
const SYSTEM_MAJOR: u32 = 1;
/// What helps where a library is not there or not whole.
const INSTALL: &str = "run `npuc toolchain install qnn`, or name the folder of whole libraries in NPUC_QNN_LIBRARIES";

/// The versions of a loaded library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versions {
    /// The core interface, e.g. 2.40.0.
    pub core: [u32; 3],
    /// The back end's interface, e.g. 5.51.0.
    pub back_end: [u32; 3],
    /// The name of the build, e.g. `v2.51.0.260929181845`.
    pub build: String,
}

/// `major.minor.patch`
pub(super) fn dotted(version: [u32; 3]) -> String {
    version.map(|part| part.to_string()).join(".")
}

macro_rules! functions {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $of:literal])* $slot:literal $field:ident($($ty:ty),*),)+ }) => {
        $(#[doc = $doc])+
        pub(super) struct $name { $($(#[doc = $of])* pub(super) $field: unsafe extern "C" fn($($ty),*) -> Status,)+ }

        impl $name {
            /// The functions of a table; `None` if one of them is absent.
            ///
            /// # Safety
            /// `table` points to the function table of such an interface.
            unsafe fn read(table: *const *const c_void) -> Option<$name> {
                Some($name { $($field: {
                    // SAFETY: tables only grow at their end, and have had this slot since the oldest version that is let in.
                    let function = unsafe { *table.add($slot) };
                    if function.is_null() {
                        return None;
                    }
                    // SAFETY: it is a function of that signature, and both are the size of a pointer.
                    unsafe { transmute_copy(&function) }
                },)+ })
            }
        }
    };
}

functions! {
    /// The functions of the back end that npuc calls, by their places in the table.
    Functions {
        /// Logger, configurations, the back end made.
        1 back_end_create(Handle, Configs, *mut Handle),
        /// The name of the build.
        4 build_id(*mut *const c_char),
        /// Whether the back end takes an operation: back end, operation.
        7 validate(Handle, Operation),
        8 back_end_free(Handle),
        /// Back end, device, configurations, the context made.
        9 context_create(Handle, Handle, Configs, *mut Handle),
        11 binary_size(Handle, *mut u64),
        /// Context, buffer, its size, the bytes written.
        12 binary(Handle, *mut c_void, u64, *mut u64),
        /// Back end, device, configurations, binary, its size, the context made, profile.
        13 context_load(Handle, Handle, Configs, *const c_void, u64, *mut Handle, Handle),
        /// Context, profile.
        14 context_free(Handle, Handle),
        /// Context, name, configurations, the graph made.
        15 graph_create(Handle, *const c_char, Configs, *mut Handle),
        18 add_node(Handle, Operation),
        /// Graph, profile, signal.
        19 finalize(Handle, Handle, Handle),
        /// Context, name, the graph found.
        20 graph_retrieve(Handle, *const c_char, *mut Handle),
        /// Graph, inputs, outputs, profile, signal.
        21 execute(Handle, *const Tensor, u32, *mut Tensor, u32, Handle, Handle),
        24 create_tensor(Handle, *mut Tensor),
        /// Function for lines, level, the logger made.
        25 log_create(*const c_void, u32, *mut Handle),
        /// Back end, level, the profile made.
        28 profile_create(Handle, u32, *mut Handle),
        29 profile_configure(Handle, Configs),
        /// Profile, its events, their number.
        30 profile_events(Handle, *mut *const u64, *mut u32),
        /// Event, the events of which it consists, their number.
        31 profile_parts(u64, *mut *const u64, *mut u32),
        /// Event, what it says.
        32 profile_event(u64, *mut Event),
        34 profile_free(Handle),
        /// Logger, configurations, the device made.
        40 device_create(Handle, Configs, *mut Handle),
        43 device_free(Handle),
        /// The text of an error.
        48 error_message(Status, *mut *const c_char),
    }
}

functions! {
    /// The functions that read context binaries, by their places in the table.
    SystemFunctions {
        0 create(*mut Handle),
        /// Reader, binary, its size, what was read, its size.
        1 binary_info(Handle, *mut c_void, u64, *mut *const c_void, *mut u64),
        3 free(Handle),
    }
}

/// The loaded HTP back end.
pub(super) struct Library {
    /// Takes the library's lines; null where it is left to itself.
    pub(super) logger: Handle,
    pub(super) functions: Functions,
    pub(super) versions: Versions,
}

/// The loaded reader of context binaries.
pub(super) struct System {
    pub(super) functions: SystemFunctions,
    pub(super) version: [u32; 3],
}

impl Library {
    /// Loads the back end of the folder, for good.
    ///
    /// Errors: [`Code::MissingTool`] if it is not there or too old; [`Code::ToolFailed`] if it does not load.
    pub(super) fn load(folder: &Path) -> Result<Library> {
        let path = folder.join(HTP);
        let provider = provider::<Provider>(&path, c"QnnInterface_getProviders")?;
        // SAFETY: the library gives pointers to providers that it owns, and stays loaded.
        let (core, back_end) = unsafe { ((*provider).core, (*provider).back_end) };
        check_versions(core, back_end).map_err(|fault| fault.in_file(&path))?;
        // SAFETY: the table follows the provider.
        let functions = unsafe { Functions::read(provider.add(1).cast()) };
        let functions = functions.ok_or_else(|| incomplete(&path))?;
        let mut build = ptr::null();
        // SAFETY: it writes a pointer to a text of its own.
        let status = unsafe { (functions.build_id)(&raw mut build) };
        let build = if status == 0 { text(build) } else { String::new() };
        Ok(Library { logger: logger(&functions), functions, versions: Versions { core, back_end, build } })
    }

    /// What the library calls an error.
    pub(super) fn error_name(&self, status: Status) -> Option<String> {
        let mut message = ptr::null();
        // SAFETY: it writes a pointer to a text of its own.
        let found = unsafe { (self.functions.error_message)(status, &raw mut message) };
        Some(text(message)).filter(|text| found == 0 && !text.is_empty())
    }
}

impl System {
    /// Loads the reader of the folder, for good.
    ///
    /// Errors: as [`Library::load`].
    pub(super) fn load(folder: &Path) -> Result<System> {
        let path = folder.join(SYSTEM);
        let provider = provider::<SystemProvider>(&path, c"QnnSystemInterface_getProviders")?;
        // SAFETY: the library gives pointers to providers that it owns, and stays loaded.
        let version = unsafe { (*provider).version };
        if version[0] != SYSTEM_MAJOR {
            let fault = Diagnostic::error(Code::MissingTool, "QNN's reader of context binaries has another version");
            return Err(fault.file(&path).need(format!("{SYSTEM_MAJOR}.x")).have(dotted(version)).into());
        }
        // SAFETY: the table follows the provider.
        let functions = unsafe { SystemFunctions::read(provider.add(1).cast()) };
        Ok(System { functions: functions.ok_or_else(|| incomplete(&path))?, version })
    }
}

/// Lets the library's warnings and errors go to the standard error.
fn logger(functions: &Functions) -> Handle {
    const WARNINGS: u32 = 2;
    let mut logger = ptr::null_mut();
    // SAFETY: the function has the signature that the library calls, and the handle is written.
    let status = unsafe { (functions.log_create)(take_line as *const c_void, WARNINGS, &raw mut logger) };
    if status == 0 { logger } else { ptr::null_mut() }
}

unsafe extern "C" {
    /// The C library's; `arguments` is a `va_list`, which x86-64 and AArch64 pass as a pointer.
    fn vsnprintf(to: *mut c_char, size: usize, format: *const c_char, arguments: *mut c_void) -> i32;
    /// The C library's; null means every stream.
    fn fflush(stream: *mut c_void) -> i32;
}

/// Takes a line of the library.
extern "C" fn take_line(format: *const c_char, _level: u32, _time: u64, arguments: *mut c_void) {
    let mut line = [0u8; 4096];
    // SAFETY: the library gives a format with its arguments; at most the buffer's size is written, and a 0 ends it.
    unsafe { vsnprintf(line.as_mut_ptr().cast(), line.len(), format, arguments) };
    let end = line.iter().position(|&byte| byte == 0).unwrap_or(line.len());
    say(&String::from_utf8_lossy(&line[..end]));
}

/// Puts a line into the log.
pub(super) fn say(line: &str) {
    // There is nobody to tell that the log takes no line.
    let _ = writeln!(std::io::stderr(), "{}", line.trim_end());
}

/// Lets what the library has printed be written.
pub(super) fn flush() {
    // SAFETY: every stream is meant.
    unsafe { fflush(ptr::null_mut()) };
}

/// The text at a pointer that may be null; the library owns it.
pub(super) fn text(start: *const c_char) -> String {
    if start.is_null() {
        return String::new();
    }
    // SAFETY: texts of the library end with a 0 and stay while it is loaded.
    unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned()
}

/// Refuses libraries that would misread what npuc writes.
fn check_versions(core: [u32; 3], back_end: [u32; 3]) -> Result<()> {
    let have = format!("core {}, back end {}", dotted(core), dotted(back_end));
    let need = format!("core {CORE}.x, back end {}.{} or a later {}.x", BACK_END[0], BACK_END[1], BACK_END[0]);
    let message = match (core[0] == CORE, back_end) {
        (true, [major, minor, _]) if major == BACK_END[0] && minor >= BACK_END[1] => return Ok(()),
        (true, [major, ..]) if major <= BACK_END[0] => "QNN's library is too old",
        (true, _) | (false, _) => "QNN's library has an interface that npuc does not know",
    };
    let fault = Diagnostic::error(Code::MissingTool, message).need(need).have(have);
    Err(fault.help("run `npuc toolchain install qnn`, or name a folder with newer libraries").into())
}

fn incomplete(path: &Path) -> Diagnostic {
    Diagnostic::error(Code::ToolFailed, "QNN's library lacks functions of its version").file(path)
}

/// The first provider that a library gives. The library is never unloaded, since it has threads of its own.
fn provider<T>(path: &Path, symbol: &CStr) -> Result<*const T> {
    let fault = |code, message: String| Diagnostic::error(code, message).file(path);
    if !path.is_file() {
        let fault = fault(Code::MissingTool, "QNN's library is not there".into());
        return Err(fault.help(INSTALL).into());
    }
    // SAFETY: this process exists for the library; what it does when it is loaded endangers nothing else.
    let library = unsafe { libloading::Library::new(path) };
    let library = library.map_err(|e| {
        // What the system says is behind the crate's own words.
        let said = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        fault(Code::ToolFailed, format!("QNN's library does not load: {said}")).help(INSTALL)
    })?;
    let library = ManuallyDrop::new(library);
    type Providers<T> = unsafe extern "C" fn(*mut *const *const T, *mut u32) -> Status;
    // SAFETY: the function of that name has this signature.
    // SAFETY: the function of that name has this signature.
    let providers = unsafe { library.get::<Providers<T>>(symbol.to_bytes_with_nul()) };
    let providers = providers.map_err(|e| fault(Code::ToolFailed, format!("the file is no library of QNN: {e}")))?;
    let (mut list, mut count) = (ptr::null(), 0);
    // SAFETY: it writes a list of its own and the list's length.
    let status = unsafe { providers(&raw mut list, &raw mut count) };
    if status != 0 || count == 0 || list.is_null() {
        let message = format!("QNN's library gives no interface (error {})", status & 0xffff);
        return Err(fault(Code::ToolFailed, message).into());
    }
    // SAFETY: the list has `count` entries.
    Ok(unsafe { *list })
}

const _: () =
    assert!(size_of::<Provider>() == 40 && size_of::<SystemProvider>() == 32 && size_of::<abi::Handle>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_other_versions_are_refused() {
        for (core, back_end, expected) in [
            ([2, 40, 0], [5, 51, 0], None),
            ([2, 36, 0], [5, 47, 0], None),
            ([2, 99, 0], [5, 99, 0], None),
            ([2, 30, 0], [5, 43, 0], Some("QNN's library is too old")),
            ([2, 10, 0], [4, 60, 0], Some("QNN's library is too old")),
            ([2, 40, 0], [6, 0, 0], Some("QNN's library has an interface that npuc does not know")),
            ([3, 0, 0], [5, 51, 0], Some("QNN's library has an interface that npuc does not know")),
        ] {
            let error = check_versions(core, back_end).err();
            let fault = error.as_ref().map(|error| &error.diagnostics()[0]);
            assert_eq!(fault.map(|fault| fault.message.as_str()), expected);
            let have = format!("core {}, back end {}", dotted(core), dotted(back_end));
            assert!(fault.is_none_or(|fault| fault.code == Code::MissingTool && fault.have == Some(have)));
        }
    }
}
