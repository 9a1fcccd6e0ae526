#include "bind/bind.hpp"

NB_MODULE(_core, m) {
  m.doc() = "Slipstream's native core: batched worlds and the kernels learners share.";
  slipstream::bind_vec_env(m);
  slipstream::bind_kernels(m);
  slipstream::bind_probe(m);
  slipstream::bind_airspace(m);
  slipstream::bind_horizontal_cr(m);
}
