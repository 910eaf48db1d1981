// A projection of 256 inputs to 128 outputs over weights in blocks of 32: the form that Torq's compiler fuses. The test puts
// type, numbers and scales in.
func.func @step(%x: tensor<1x256xbf16>) -> tensor<1x128xbf16> {
  %q = arith.constant dense<"0xNUMBERS"> : tensor<8x32x128xTYPE>
  %s = arith.constant dense<"0xSCALES"> : tensor<8x1x128xbf16>
  %e = tensor.empty() : tensor<8x32x128xbf16>
  %d = linalg.generic {
      indexing_maps = [affine_map<(b, k, n) -> (b, k, n)>, affine_map<(b, k, n) -> (b, 0, n)>, affine_map<(b, k, n) -> (b, k, n)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%q, %s : tensor<8x32x128xTYPE>, tensor<8x1x128xbf16>) outs(%e : tensor<8x32x128xbf16>) {
    ^bb0(%number: TYPE, %scale: bf16, %unused: bf16):
      %float = arith.sitofp %number : TYPE to bf16
      %value = arith.mulf %float, %scale : bf16
      linalg.yield %value : bf16
  } -> tensor<8x32x128xbf16>
  %w2 = tensor.collapse_shape %d [[0, 1], [2]] : tensor<8x32x128xbf16> into tensor<256x128xbf16>
  %w = tensor.expand_shape %w2 [[0, 1], [2]] output_shape [1, 256, 128] : tensor<256x128xbf16> into tensor<1x256x128xbf16>
  %x3 = tensor.expand_shape %x [[0], [1, 2]] output_shape [1, 1, 256] : tensor<1x256xbf16> into tensor<1x1x256xbf16>
  %zero = arith.constant 0.0 : bf16
  %empty = tensor.empty() : tensor<1x1x128xbf16>
  %zeros = linalg.fill ins(%zero : bf16) outs(%empty : tensor<1x1x128xbf16>) -> tensor<1x1x128xbf16>
  %y3 = linalg.batch_matmul ins(%x3, %w : tensor<1x1x256xbf16>, tensor<1x256x128xbf16>)
      outs(%zeros : tensor<1x1x128xbf16>) -> tensor<1x1x128xbf16>
  %y = tensor.collapse_shape %y3 [[0], [1, 2]] : tensor<1x1x128xbf16> into tensor<1x128xbf16>
  return %y : tensor<1x128xbf16>
}
