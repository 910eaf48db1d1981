// One value through a port of each type.
module {
  func.func @step(%a: tensor<2x3xf16>, %b: tensor<3xi8>, %c: tensor<1x2xi32>, %d: tensor<2xi16>)
      -> (tensor<2x3xf16>, tensor<3xi8>, tensor<1x2xi32>, tensor<2xi16>) {
    %a2 = stablehlo.add %a, %a : tensor<2x3xf16>
    %b2 = stablehlo.negate %b : tensor<3xi8>
    %c2 = stablehlo.multiply %c, %c : tensor<1x2xi32>
    %d2 = stablehlo.negate %d : tensor<2xi16>
    return %a2, %b2, %c2, %d2 : tensor<2x3xf16>, tensor<3xi8>, tensor<1x2xi32>, tensor<2xi16>
  }
}
