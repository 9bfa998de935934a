"""A store in a bucket of any service that speaks S3: AWS, R2, B2, MinIO, SeaweedFS, Hugging Face."""
