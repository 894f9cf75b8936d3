#include "normgrad/communicator.hpp"

namespace normgrad {

Communicator::~Communicator() = default;

}  // namespace normgrad
