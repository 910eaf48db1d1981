//! The kinds of statements: who makes them, what each is worth and means, and where that is known from.

use npuc::target::Grade;
use npuc::target::rule::Cost;
use serde::Serialize;

use super::Weight;

/// What is known of a kind.
pub(super) struct Facts {
    pub(super) tool: &'static str,
    pub(super) weight: Weight,
    pub(super) meaning: &'static str,
    pub(super) source: &'static str,
    pub(super) grade: Grade,
    /// Remedies that need no numbers: what each costs, the flag or option that does it or "", and what it does.
    pub(super) remedies: &'static [(Cost, &'static str, &'static str)],
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident $tool:ident $weight:ident $meaning:literal $grade:ident $source:literal
        [$($cost:ident $option:literal $remedy:literal),*],)+) => {
        /// A kind of statement.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Kind { $($(#[doc = $doc])+ $name,)+ }

        impl Kind {
            /// What is known of the kind.
            pub(super) const fn facts(self) -> Facts {
                match self {
                    $(Kind::$name => Facts {
                        tool: $tool,
                        weight: Weight::$weight,
                        meaning: $meaning,
                        source: $source,
                        grade: Grade::$grade,
                        remedies: &[$((Cost::$cost, $option, $remedy)),*],
                    },)+
                }
            }
        }
    };
}

const NCC: &str = "ncc-tflite";
const NEURON: &str = "MediaTek's runtime";
const QNN: &str = "QNN";
const TORQ: &str = "torq-compile";
const IREE: &str = "IREE";
const IREE_RUN: &str = "IREE's runtime";

kinds! {
    /// An extent above what the MDLA takes.
    Dimension NCC Refusal
        "offline compilation has no CPU to fall back to, so one such operation refuses the whole file; --fc-to-conv does not \
         help, for the channels stay as many"
        Vendor "MediaTek, on a FULLY_CONNECTED of 128256 x 2048" [],
    /// A unit does not take the operation.
    UnsupportedOperation NCC Refusal
        "offline compilation has no CPU to fall back to, so one such operation refuses the whole file"
        Vendor "MediaTek's staff" [],
    /// A unit does not take a number format.
    UnsupportedNumber NCC Refusal
        "the MDLA computes in fp16 and in 4, 8 and 16-bit integers; int32 arithmetic was seen refused, reshapes of int32 included"
        ThirdParty "users' logs, among them pull request 9497 of google-ai-edge/LiteRT"
        [
            Option "npuc check --precision" "tells which formats the chip takes together",
            Rewrite "" "keep ids, positions and masks of whole numbers outside of the graph, as npuc's graphs do"
        ],
    /// Another reason of a unit.
    OtherReason NCC Refusal
        "npuc does not know this reason; the line is the compiler's own"
        Inferred "the form of the line: a unit, a colon, a reason" [],
    /// Another unit refuses what the MDLA gave a reason for.
    OtherUnit NCC Consequence
        "the compiler asks every unit; the reason that counts is the MDLA's"
        Inferred "the order of the answers in MediaTek's refusal of a FULLY_CONNECTED" [],
    /// The compiler ends without a plan.
    NoPlan NCC Consequence
        "the last word after refusals of single operations; the reasons stand above it"
        Vendor "MediaTek, on a FULLY_CONNECTED of 128256 x 2048" [],
    /// A rewrite for LLMs met a float graph.
    QuantizedOnly NCC Refusal
        "the option set for LLMs holds a rewrite (LLM_BMASB_with_CachePattern) that is fatal on float graphs"
        Vendor "MediaTek's staff"
        [
            Flag "" "give a float graph --arch, --relax-fp32 and what the board needs, and no more: `npuc check` lists the flags",
            Option "--precision 8W16A" "makes a graph that the option set is for"
        ],
    /// The compiler cannot map the graph, and does not say why.
    Unmappable NCC Refusal
        "seen on a shard of 35 layers with 4,500 to 5,000 operations, whatever the weights' width, where 18 layers compiled"
        ThirdParty "a user's report of such shards"
        [
            Option "--chunks" "more chunks have fewer layers each; stay under about 2,500 operations a file"
        ],
    /// A unit that the plan uses.
    Placement NCC Note
        "each of these steps runs on the unit that is named"
        ThirdParty "users of --show-exec-plan" [],
    /// A file was made for a unit that the board lacks.
    ForeignUnit NEURON Refusal
        "the .dla has steps for a unit that this board does not have: another generation's MDLA, or an EDPA for the conversion \
         of inputs and outputs"
        ThirdParty "users of Genio 720 boards, which have MDLA 5.3 and no EDPA" [],
    /// The driver cannot allocate.
    DriverMemory NEURON Refusal
        "APUSys' memory limit is not published; a small request that fails comes after exhaustion, not from one large operation. \
         MediaTek guarantees transformers from MDLA 5 on only"
        Inferred "a logged failure of 160 bytes on a Genio 700, and the answer of MediaTek's staff to it"
        [
            Option "--shapes" "a shorter context or fewer tokens at once need less memory; `npuc check` tells how much",
            Option "--chunks" "more chunks, loaded one after the other, need less at a time",
            Other "" "a chip with MDLA 5 or later, for which MediaTek guarantees transformers"
        ],
    /// The driver cannot take a buffer.
    DriverImport NEURON Refusal
        "a buffer of an input, an output or a boundary between NPU and CPU does not fit what the driver can still map"
        ThirdParty "a user's log of a model with tensors of 43 MB"
        [
            Option "--shapes" "a shorter context or fewer tokens at once need less memory; `npuc check` tells how much",
            Option "--chunks" "more chunks, loaded one after the other, need less at a time",
            Other "" "a chip with MDLA 5 or later, for which MediaTek guarantees transformers"
        ],
    /// What follows in the layers above.
    DriverChain NEURON Consequence
        "follows from the first failure of the driver or the compiler"
        ThirdParty "the order of lines in users' logs" [],
    /// No device.
    QnnDevice QNN Refusal
        "the library for the DSP (Skel) is not found, or another version of it in /vendor/lib64 is found first; the same code \
         stands for a device configuration of an older layout, or for a chip that the libraries do not know"
        ThirdParty "users' reports; the configuration's layout was tried"
        [
            Other "" "put the Skel of the chip's generation where ADSP_LIBRARY_PATH looks first, before /vendor/lib64"
        ],
    /// The NPU's library is not found.
    QnnSkel QNN Refusal
        "the loader on the DSP searches the folders of ADSP_LIBRARY_PATH, split at semicolons: the Skel is in none of them, or \
         another version of it in /vendor/lib64 is found first"
        ThirdParty "users' reports, among them issue 379 of qualcomm/fastrpc and issue 158 of qualcomm/ai-hub-apps"
        [
            Option "npuc push --libraries" "puts the Skel into a folder of its own and prints a command whose ADSP_LIBRARY_PATH begins with it",
            Other "" "take Stub and Skel of one SDK, the one of libQnnHtp.so"
        ],
    /// A device configuration that is not understood.
    QnnConfig QNN Refusal
        "since version 5.47 of the HTP back end the chip's number stands 8 bytes into the configuration and not 4: in the older \
         layout it is read as 0. A chip that is newer than the libraries gives the same"
        Tried "QNN 2.51 in emulation"
        [
            Other "" "use a program that was built for these libraries, or libraries of the program's time",
            Other "" "if npuc made the configuration, this is a fault of npuc: report it with the log"
        ],
    /// A graph cannot be prepared.
    QnnPrepare QNN Refusal
        "QNN names it a memory fault (1002); what it says is that no kernel takes the operation in these formats and shapes, \
         such as a FullyConnected with block-wise 4-bit weights"
        Tried "QNN 2.51 in emulation"
        [
            Rewrite "" "block-wise 4-bit projections are taken as Conv2d of one pixel, not as FullyConnected; float blocks only with fp16 activations"
        ],
    /// A kernel that is not there.
    QnnNoKernel QNN Note
        "said of graphs that are prepared well too; it is a reason only where an operation then cannot be created"
        Tried "QNN 2.51 in emulation" [],
    /// A feature that is not there.
    QnnPlatform QNN Refusal
        "the libraries for this machine lack what was asked for, such as context binaries of graphs with shared weights on x86"
        Tried "QNN 2.51 in emulation"
        [
            Rewrite "" "test on the host with a twin that does not share weights"
        ],
    /// A context binary of another version.
    QnnVersion QNN Refusal
        "the binary was made by a newer QNN than the one that loads it"
        ThirdParty "users' reports, and texts inside QNN 2.51"
        [
            Other "" "load with libraries at least as new as those that made the binary, or make it with older ones; `npuc push` compares them"
        ],
    /// A file that is no context binary.
    QnnBinary QNN Refusal
        "the file was cut off, changed or is another one"
        Tried "QNN 2.51 in emulation: a file cut off, and one with another beginning"
        [
            Other "" "copy the file again and compare its size and hash with the bundle's manifest"
        ],
    /// A rule of the validation.
    QnnRule QNN Refusal
        "an attribute, rank or format is outside of what the chip's operation takes; 3110 is the code"
        Tried "QNN 2.51 in emulation"
        [
            Option "npuc check" "tells which operations and formats the chip takes, where npuc knows"
        ],
    /// Data types that do not go together.
    QnnFormats QNN Refusal
        "each operand is fine alone; the operation takes them only in certain sets, which the log lists after this line"
        Tried "QNN 2.51 in emulation"
        [
            Option "npuc check" "tells which formats of weights and activations the chip takes together, where npuc knows"
        ],
    /// A later generation is needed.
    QnnGeneration QNN Refusal
        "the numbers are generations of the NPU: 75 is that of SM8650, 79 of SM8750, 81 of SM8850. Seen for weights in blocks of \
         their own scales (encoding 4) with 16-bit activations"
        Tried "QNN 2.51 in emulation"
        [
            Rewrite "" "give the weights in LPBQ, whose block scales are whole numbers, which v75 takes",
            Other "" "build for a chip of that generation"
        ],
    /// Float blocks of another rank.
    QnnFloatBlock QNN Refusal
        "4-bit weights in blocks with float scales are taken by FullyConnected (rank 2) and Conv2d; MatMul asks for rank 4, and \
         with rank 4 the process was seen to crash"
        Tried "QNN 2.51 in emulation"
        [
            Rewrite "" "write the projection as FullyConnected or as Conv2d of one pixel"
        ],
    /// An operation that is not there.
    QnnUnknownOp QNN Refusal
        "the operation is not among those of this version or package"
        Tried "QNN 2.51 in emulation"
        [
            Option "npuc check" "tells which operations and formats the chip takes, where npuc knows"
        ],
    /// A name that is there twice.
    QnnDuplicate QNN Refusal
        "names of tensors are unique in a graph"
        Tried "QNN 2.51 in emulation"
        [
            Other "" "if npuc made the graph, this is a fault of npuc: report it with the log"
        ],
    /// A data type that is not taken.
    QnnDataType QNN Refusal
        "4-bit weights are given one a byte as signed 8-bit numbers (0x308); the packed type 0x304 (772) is refused"
        Tried "QNN 2.51 in emulation"
        [
            Rewrite "" "give 4-bit weights one a byte; the binary packs them"
        ],
    /// A graph without operations.
    QnnEmpty QNN Refusal
        "a graph needs at least one operation"
        Tried "QNN 2.51 in emulation"
        [
            Other "" "if npuc made the graph, this is a fault of npuc: report it with the log"
        ],
    /// A binary with shared weights on x86.
    QnnShared QNN Refusal
        "such binaries load on the chip only; the fault is the host's, not the file's"
        Tried "QNN 2.51 in emulation"
        [
            Rewrite "" "test on the host with a twin that does not share weights"
        ],
    /// What follows from a reason.
    QnnChain QNN Consequence
        "the code of a reason that stands in words in the log"
        Tried "QNN 2.51 in emulation" [],
    /// No estimates.
    QnnEstimates QNN Note
        "a figure of time is made for some automotive chips only (SoC ids 52, 62, 63, 72 and 77); graphs are prepared all the same"
        Tried "QNN 2.51 in emulation" [],
    /// A device asked for by its generation.
    QnnArch QNN Note
        "the libraries take the usual chip of that generation, whose on-chip memory may be another than yours"
        Tried "QNN 2.51 in emulation"
        [
            Other "" "ask for the chip by its number: the generation follows from it"
        ],
    /// A complaint that means nothing.
    QnnHarmless QNN Note
        "said in every run, also as [ERROR], of graphs that are prepared and computed well"
        Tried "QNN 2.51 in emulation" [],
    /// No room on the DSP.
    QnnDomain QNN Refusal
        "all graphs of a context allocate their inputs and outputs when it is loaded, and about 3.5 GiB a context is the most"
        ThirdParty "users' reports"
        [
            Option "--shapes" "fewer shapes or a shorter context need less at load",
            Option "--chunks" "more chunks make more and smaller contexts"
        ],
    /// The memory next to the arithmetic is too small or in pieces.
    TorqLram TORQ Refusal
        "seen where all projections have 4-bit weights and the default prefetch is used: no hole is large enough although the sum \
         would fit"
        Tried "torq-compiler 2.3.0, on a decode step of 16 layers"
        [
            Flag "--torq-prefetch-algorithm=stream-schedule" "compiled 16 layers in 4 bits with their head; look at the balance of the slices afterwards",
            Option "--precision 8WFP" "8-bit projections compiled with the default options",
            Rewrite "" "one public function a layer compiles too, at more entry points"
        ],
    /// The memory next to the arithmetic is in pieces.
    TorqFragments TORQ Refusal
        "the sum would fit; the free memory is split by other live buffers"
        Tried "torq-compiler 2.3.0 with --debug-only=torq-assign-addresses, on a decode step of 6 layers"
        [
            Flag "--torq-prefetch-algorithm=stream-schedule" "compiled 16 layers in 4 bits with their head; look at the balance of the slices afterwards",
            Option "--precision 8WFP" "8-bit projections compiled with the default options",
            Rewrite "" "one public function a layer compiles too, at more entry points"
        ],
    /// 4-bit weights that are not fused.
    TorqForm TORQ Refusal
        "4-bit weights are taken only in one form: blocks [inputs/block, block, outputs], dequantised by a linalg.generic, used by a \
         linalg.batch_matmul of one row"
        Tried "torq-compiler 2.3.0"
        [
            Rewrite "" "write the blocks as [inputs/block, block, outputs] and keep both operations in linalg"
        ],
    /// A slice that is not taken.
    TorqOffset TORQ Refusal
        "dynamic slices and updates are not taken"
        Tried "torq-compiler 2.3.0"
        [
            Rewrite "" "write the cache under a mask (protocol one-hot) and look embeddings up on the host"
        ],
    /// A copy that is not taken.
    TorqCopy TORQ Refusal
        "an odd number of 4-bit outputs ends in half a byte"
        Tried "torq-compiler 2.3.0"
        [
            Rewrite "" "pad the outputs to an even number"
        ],
    /// The compiler stops itself over an index of a matrix product.
    TorqAffine TORQ Refusal
        "seen for 4-bit weights in a product of rank 2, or of a transposed matrix: only a linalg.batch_matmul over blocks \
         [inputs/block, block, outputs] keeps them packed"
        Tried "torq-compiler 2.3.0, linalg.matmul over 4-bit weights"
        [
            Rewrite "" "write the product as a linalg.batch_matmul of one row and one batch"
        ],
    /// The compiler stops itself over an assertion that npuc does not know.
    TorqAssertion TORQ Refusal
        "the compiler stopped itself: a form was not foreseen there. f16, and f32 in weights of blocks without conversion, were seen to \
         end so"
        Tried "torq-compiler 2.3.0"
        [
            Flag "--torq-convert-dtypes" "converts f32 to bf16, which the NPU computes in",
            Rewrite "" "give the module in bf16"
        ],
    /// An operation that is off the slices where that is forbidden.
    TorqOffSlices TORQ Refusal
        "the operation would run on the control processor (CSS) or the host, which --torq-disable-css and --torq-disable-host forbid. Seen \
         for exponential, log, power, clamp, a transpose of two axes, a broadcast along a middle axis and products of rank 2"
        Tried "torq-compiler 2.3.0, stablehlo.exponential"
        [
            Flag "--torq-enable-general-exp" "computes exponentials on the slices",
            Rewrite "" "write the operation otherwise: softmax as linalg.softmax, products as linalg.batch_matmul, caches [heads, width, capacity]"
        ],
    /// Code for the host that cannot be linked.
    TorqHost TORQ Refusal
        "an operation falls to the board's CPU, for which code is made, and there is no linker for it on this machine; arithmetic in f32 \
         ends so"
        Tried "torq-compiler 2.3.0, an addition in f32"
        [
            Flag "--torq-convert-dtypes" "converts f32 to bf16, which the NPU computes in",
            Flag "--torq-disable-host" "names the operation that falls to the host"
        ],
    /// A call between functions.
    TorqCall TORQ Refusal
        "private functions that are called are not taken"
        Tried "torq-compiler 2.3.0, a function a layer and calls of them"
        [
            Rewrite "" "one public function a layer, called by the runner, or all in one function"
        ],
    /// A program of the control processor that is too large in one of the ways tried.
    TorqCssStack TORQ Note
        "the compiler tries sizes of tiles and says so of those that do not fit; it means that an operation runs on the control processor"
        Tried "torq-compiler 2.3.0" [],
    /// The machine's C library is too old.
    TorqLibc TORQ Refusal
        "Torq's wheels are made for glibc 2.38 and GCC 13's C++ library; Debian 12 has 2.36"
        Tried "torq-compiler 2.3.0 on Debian 12"
        [
            Option "npuc toolchain install torq" "unpacks newer libraries into npuc's cache for these programs alone"
        ],
    /// A vector whose bits are taken for other numbers.
    IreeBitcast IREE Refusal
        "for Mali (valhall4) and some other GPUs, bf16 weights as the right operand of a small product, and bf16 products with a bf16 result, \
         do not compile; for the CPU and llvmpipe they do"
        Tried "iree-compile 3.13.0, products of 32 x 64 weights for valhall4"
        [
            Rewrite "" "give the weight as the left operand (W x), or as 16-bit integers shifted into f32, or in f16 or f32; sum in f32"
        ],
    /// A large constant vector.
    IreeConstant IREE Refusal
        "for Mali (valhall4), writing new rows into a cache of 512 or more positions is fused with the projection that makes them, which \
         does not compile"
        Tried "iree-compile 3.13.0, caches of 512 and 1024 positions for valhall4"
        [
            Rewrite "" "put a stablehlo.optimization_barrier on the new rows before they are written, or write with dynamic_update_slice"
        ],
    /// Parameters that are not given.
    IreeScope IREE_RUN Refusal
        "the module's weights are external, and no file was given for their scope"
        Tried "iree-run-module 3.13.0"
        [
            Option "--parameters=SCOPE=FILE.safetensors" "gives iree-run-module the weights; the scope stands in the module's text before `::`"
        ],
    /// A parameter that the file lacks.
    IreeParameter IREE_RUN Refusal
        "the file that was given for the scope has no tensor of that name"
        Tried "iree-run-module 3.13.0"
        [
            Other "" "give the file that was written together with the module"
        ],
    /// Arguments that are not the function's.
    IreeArguments IREE_RUN Refusal
        "the values that were given are not those that the function takes; the log has its signature"
        Tried "iree-run-module 3.13.0"
        [
            Other "" "give inputs in the order, shapes and types of the bundle's io.txt"
        ],
    /// No Vulkan.
    IreeVulkan IREE_RUN Refusal
        "there is no loader of Vulkan drivers, or no driver that it can use"
        Tried "iree-run-module 3.13.0 on a machine without Vulkan"
        [
            Option "npuc toolchain install vulkan" "fetches a driver that computes on the CPU, for npuc alone"
        ],
}

impl Kind {
    /// Whether it is said of one operation.
    pub(super) const fn about_operation(self) -> bool {
        use Kind::{Dimension, OtherReason, OtherUnit, UnsupportedNumber, UnsupportedOperation};
        matches!(self, Dimension | UnsupportedOperation | UnsupportedNumber | OtherReason | OtherUnit)
    }
}
