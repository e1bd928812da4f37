// Epilogues of products other than an activation, as ACTIVATION names them: common to wide_product.cu and mid_product.cu,
// put before each as text. epilogues.py makes the names.

// out = A(x w' + bias) * (x g' + more), where g and `more` follow w and bias in memory, as many rows again.
template <typename A> struct Gated : A {};
template <typename A> constexpr bool HAS_GATE = false;
template <typename A> constexpr bool HAS_GATE<Gated<A>> = true;

// Heads of DIM columns, of which those of queries and keys are turned by their rows' angles.
template <int DIM> struct Turned : Identity {};
template <typename A> constexpr int DIM_OF = 0;
template <int DIM> constexpr int DIM_OF<Turned<DIM>> = DIM;

// Rotary positions, as in rotate.cu; nulls where nothing is turned. The first `width` columns of out are those of queries
// and keys.
struct Rotary {
    const int* positions;
    const float* cosines;
    const float* sines;
    int width;
};
