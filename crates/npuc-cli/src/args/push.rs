//! The flags of `npuc push`.

use std::path::PathBuf;

use clap::Args;

const PUSH: &str = "\
On the phone, DIR becomes `bundle` in the folder of --to, npuc itself `bin/npuc`, and Qualcomm's
libraries lie in `lib` and `dsp`. They are part of Qualcomm's SDK (QAIRT), which you get from
Qualcomm: libQnnHtp.so, libQnnSystem.so and the Stub of the NPU's generation in its folder
lib/aarch64-android, and the Skel in lib/hexagon-v75/unsigned (or v73, v79, v81). What npuc
fetches are libraries for x86.

First the chip, the space and the libraries' version are held against what the bundle needs; the
manifest is the last file to arrive. The same steps are left as DIR/push.sh.

No phone was ever at hand: only a stand-in for adb has run these steps.";

#[derive(Args)]
#[command(after_help = PUSH)]
pub(crate) struct PushArgs {
    /// A bundle that was built for one of Qualcomm's chips
    #[arg(value_name = "DIR")]
    pub(crate) bundle: PathBuf,
    /// The phone, as `adb devices` lists it
    #[arg(long, value_name = "S", allow_hyphen_values = true)]
    pub(crate) serial: String,
    /// The folder on the phone
    #[arg(long, value_name = "FOLDER", default_value = npuc_run::push::FOLDER)]
    pub(crate) to: String,
    /// Qualcomm's SDK, its folder `lib`, or a folder with the four libraries; without it, those of an earlier push stay
    #[arg(long, value_name = "DIR")]
    pub(crate) libraries: Option<PathBuf>,
    /// npuc's program for aarch64; without it, that of an earlier push stays
    #[arg(long, value_name = "FILE")]
    pub(crate) runner: Option<PathBuf>,
    /// Push although the version of the libraries is not known
    #[arg(long)]
    pub(crate) force: bool,
    /// Write the script and tell the steps, but call adb for none of them
    #[arg(long)]
    pub(crate) dry_run: bool,
}
