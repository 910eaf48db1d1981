// A projection over an external parameter, with a second result in bf16 and a third that counts steps.
module {
  util.global private @"layers.0.w" = #flow.parameter.named<"model"::"layers.0.w"> : tensor<128x256xf32>
  func.func @step(%x: tensor<256xf32>, %bias: tensor<128xbf16>, %count: tensor<i32>)
      -> (tensor<128xf32>, tensor<128xbf16>, tensor<i32>) {
    %w = util.global.load @"layers.0.w" : tensor<128x256xf32>
    %y = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0]
        : (tensor<128x256xf32>, tensor<256xf32>) -> tensor<128xf32>
    %bias_f32 = stablehlo.convert %bias : (tensor<128xbf16>) -> tensor<128xf32>
    %sum = stablehlo.add %y, %bias_f32 : tensor<128xf32>
    %z = stablehlo.convert %sum : (tensor<128xf32>) -> tensor<128xbf16>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %count, %one : tensor<i32>
    return %y, %z, %next : tensor<128xf32>, tensor<128xbf16>, tensor<i32>
  }
}
