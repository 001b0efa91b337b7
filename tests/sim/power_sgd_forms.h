// Forms of PowerSGD whose state comes back from members in different ways.
#pragma once

#include <array>

namespace gradwire::sim {

inline constexpr std::array kPowerSgdForms = {
    "power_sgd,start_powerSGD_iter=1,matrix_approximation_rank=2,min_compression_rate=1",
    "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=1,min_compression_rate=1,rounds=1",
    "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=1,min_compression_rate=1,"
    "warm_start=false",
    "power_sgd,start_powerSGD_iter=0,matrix_approximation_rank=1,min_compression_rate=1,"
    "comm_wrapper=fp16",
};

}  // namespace gradwire::sim
