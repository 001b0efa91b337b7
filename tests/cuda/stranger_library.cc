// A library that has another one's name.
extern "C" int gradwire_cuda_stranger() { return 1; }
